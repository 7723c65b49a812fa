package apply

import (
	"time"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Status is the state of the node's lock.
type Status struct {
	applied.State
	// Unreadable is why the lock cannot be read, or nil.
	Unreadable error
	// Applying is how far a running apply is, or nil.
	Applying *Progress
	// Failed is the last apply if it failed, or nil.
	Failed *Failure
	// Images are the images of the current lock, in its order.
	Images []ImageStatus
	// DriftedContainers is the number of containers that run another digest than the lock, at the last look.
	DriftedContainers int64
}

// ImageStatus is an image of the lock.
type ImageStatus struct {
	lock.Image
	// Ready has the targets for which the image is ready, and Missing those for which it should be.
	Ready, Missing []runtimeplatform.Target
}

// Status returns the state of the node's lock. It reads only memory.
func (a *Applier) Status() Status {
	st := Status{
		State: a.config.State.Get(), Unreadable: a.config.State.Err(), Applying: a.progress.Load(), Failed: a.failed.Load(),
		DriftedContainers: a.drifted.Load(),
	}
	if st.Current == nil {
		return st
	}
	runtimes := a.storedRuntimes(st.Current.Handlers)
	for _, i := range st.Current.Lock.Images {
		s := ImageStatus{Image: i}
		var without []runtimeplatform.Target
		for _, rt := range a.runtimesFor(i, runtimes) {
			switch e, ok := a.config.Images.Get(imagepin.Key{Ref: i.Ref.String(), Target: rt.Target}); {
			case ok && e.Root.Digest == i.Ref.Digest():
				s.Ready = append(s.Ready, rt.Target)
			case offers(i, &job{image: i, runtime: rt}) != nil:
			case len(i.Platforms) == 0 && !rt.Native:
				without = append(without, rt.Target) // it may not be published for this platform
			default:
				s.Missing = append(s.Missing, rt.Target)
			}
		}
		if len(s.Ready) == 0 && len(s.Missing) == 0 {
			s.Missing = without
		}
		st.Images = append(st.Images, s)
	}
	return st
}

// note notes a failed apply for the status.
func (a *Applier) note(name string, err error) {
	log.L.WithError(err).WithField("lock", name).Error("the lock was not applied")
	a.failed.Store(&Failure{At: time.Now(), Name: name, Err: err})
}
