package imagepin

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/containerd/plugin"

	"github.com/imagepin/imagepin/internal/blobcache"
)

// start has what makes the start of containerd cheaper, until its CRI is ready: a cache of manifests for the CRI.
type start struct {
	blobs *blobcache.Store // set when the CRI's image plugin is created, nil without one
}

// end ends the start. It can be called again.
func (s *start) end() {
	if s.blobs != nil {
		s.blobs.Drop()
	}
}

// endAfter ends the start when all is ready, or when ctx ends. Then it returns memory to the system: a start leaves several
// times what it keeps, and the heap of an idle node seldom grows to that again.
func (s *start) endAfter(ctx context.Context, ready ...<-chan struct{}) {
	defer s.end()
	for _, r := range ready {
		select {
		case <-r:
		case <-ctx.Done():
			return
		}
	}
	s.end()
	debug.FreeOSMemory()
}

// watchReadiness returns an init context for a plugin, and a channel that is closed when the plugin is ready. A plugin
// that does not report that is ready when it has been created; the caller closes the channel with the returned function.
func watchReadiness(ic *plugin.InitContext) (inner *plugin.InitContext, ready <-chan struct{}, created func()) {
	done := make(chan struct{})
	var (
		once     sync.Once
		reported bool
	)
	c := *ic
	c.RegisterReadiness = func() func() {
		reported = true
		report := ic.RegisterReadiness()
		return func() {
			report()
			once.Do(func() { close(done) })
		}
	}
	return &c, done, func() {
		if !reported {
			once.Do(func() { close(done) })
		}
	}
}
