package cri

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// configSeenAnnotation is set by kubelet on every pod, to the time it saw
	// the pod's configuration (pkg/kubelet/types/constants.go). The value has
	// nanoseconds and so is the pod's own.
	configSeenAnnotation = "kubernetes.io/config.seen"
	// handlerAnnotation is what a client without ImageSpec.runtime_handler
	// can name the handler by (containerd's pkg/cri annotations).
	handlerAnnotation = "io.containerd.cri.runtime-handler"
	// untrustedAnnotation makes the CRI service behind use the handler called
	// untrusted where a pod names none.
	untrustedAnnotation = "io.kubernetes.cri.untrusted-workload"
	untrustedHandler    = "untrusted"
)

// lookup gives the runtime of a handler. Its error is
// [imagepin.UnknownRuntimeHandler].
func (s *Service) lookup(handler string) (runtimeplatform.Runtime, error) {
	rt, err := s.Runtimes.Lookup(handler)
	return rt, unknownHandler(err)
}

func unknownHandler(err error) error {
	var unknown *runtimeplatform.UnknownHandlerError
	if !errors.As(err, &unknown) {
		return err
	}
	return &imagepin.Error{
		Name: imagepin.UnknownRuntimeHandler, Err: err, Class: errdefs.ErrInvalidArgument,
		Do: `Name one of these in the RuntimeClass, or add it to [plugins."io.containerd.cri.v1.runtime".containerd.runtimes].`,
	}
}

// imageRuntime finds the runtime of an image call: the handler that it names,
// or that of the sandbox it belongs to, or what its annotation says, or the
// default. strict tells whether the call says anything at all: one that does
// not is no pod's.
func (s *Service) imageRuntime(ctx context.Context, spec *runtime.ImageSpec, sandbox *runtime.PodSandboxConfig) (rt runtimeplatform.Runtime, strict bool, _ error) {
	strict = spec.GetRuntimeHandler() != "" || len(spec.GetAnnotations()) > 0 || sandbox != nil
	handler, err := s.imageHandler(ctx, spec, sandbox)
	if err != nil {
		return runtimeplatform.Runtime{}, strict, err
	}
	rt, err = s.lookup(handler)
	return rt, strict, err
}

func (s *Service) imageHandler(ctx context.Context, spec *runtime.ImageSpec, sandbox *runtime.PodSandboxConfig) (string, error) {
	if h := spec.GetRuntimeHandler(); h != "" {
		return h, nil
	}
	marks := podMarks(sandbox.GetMetadata().GetUid(), sandbox.GetAnnotations(), spec.GetAnnotations())
	if len(marks) > 0 {
		h, ok, err := s.sandboxes.byMark(ctx, marks)
		if err != nil || ok {
			return h, err
		}
	}
	for _, annotations := range []map[string]string{spec.GetAnnotations(), sandbox.GetAnnotations()} {
		if h := annotations[handlerAnnotation]; h != "" {
			return h, nil
		}
	}
	return "", nil
}

// sandboxHandler is the handler that a sandbox is made with.
func sandboxHandler(r *runtime.RunPodSandboxRequest) string {
	if h := r.GetRuntimeHandler(); h != "" {
		return h
	}
	if r.GetConfig().GetAnnotations()[untrustedAnnotation] == "true" {
		return untrustedHandler
	}
	return ""
}

// podMarks are what tells a pod apart from others, in order of trust: its UID
// and the time kubelet saw it.
func podMarks(uid string, annotations ...map[string]string) []string {
	var marks []string
	if uid != "" {
		marks = append(marks, "uid "+uid)
	}
	for _, a := range annotations {
		if seen := a[configSeenAnnotation]; seen != "" {
			marks = append(marks, "seen "+seen)
		}
	}
	return marks
}

// sandboxes remembers the handlers of the node's sandboxes. It is a cache of
// what the service behind knows, and ahead of it while a sandbox is being made.
type sandboxes struct {
	list func(context.Context) ([]*runtime.PodSandbox, error)

	mu      sync.Mutex
	marks   map[string]*sandbox
	byID    map[string]*sandbox
	refresh keyed.Mutex
}

type sandbox struct {
	handler string
	marks   []string
}

// byMark finds the handler of the sandbox that has one of the marks.
func (x *sandboxes) byMark(ctx context.Context, marks []string) (handler string, ok bool, _ error) {
	if h, ok := x.known(marks); ok {
		return h, true, nil
	}
	if err := x.reload(ctx); err != nil {
		return "", false, err
	}
	h, ok := x.known(marks)
	return h, ok, nil
}

func (x *sandboxes) known(marks []string) (string, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range marks {
		if s := x.marks[m]; s != nil {
			return s.handler, true
		}
	}
	return "", false
}

// handlerOf gives the handler of a sandbox by its ID.
func (x *sandboxes) handlerOf(ctx context.Context, id string) (handler string, ok bool, _ error) {
	x.mu.Lock()
	s := x.byID[id]
	x.mu.Unlock()
	if s != nil {
		return s.handler, true, nil
	}
	if err := x.reload(ctx); err != nil {
		return "", false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if s = x.byID[id]; s == nil {
		return "", false, nil
	}
	return s.handler, true, nil
}

// reload adds what the service behind has and this does not.
func (x *sandboxes) reload(ctx context.Context) error {
	const key = "list"
	if err := x.refresh.Lock(ctx, key); err != nil {
		return err
	}
	defer x.refresh.Unlock(key)
	all, err := x.list(ctx)
	if err != nil {
		return err
	}
	// A pod's latest sandbox wins.
	slices.SortFunc(all, func(a, b *runtime.PodSandbox) int { return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()) })
	for _, s := range all {
		x.add(s.GetId(), &sandbox{
			handler: s.GetRuntimeHandler(),
			marks:   podMarks(s.GetMetadata().GetUid(), s.GetAnnotations()),
		})
	}
	return nil
}

// add notes a sandbox; id is empty while it is being made.
func (x *sandboxes) add(id string, s *sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.marks == nil {
		x.marks, x.byID = make(map[string]*sandbox), make(map[string]*sandbox)
	}
	for _, m := range s.marks {
		x.marks[m] = s
	}
	if id != "" {
		x.byID[id] = s
	}
}

// remove forgets a sandbox that is gone or could not be made.
func (x *sandboxes) remove(id string, s *sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s == nil {
		s = x.byID[id]
	}
	if s == nil {
		return
	}
	delete(x.byID, id)
	for _, m := range s.marks {
		if x.marks[m] == s {
			delete(x.marks, m)
		}
	}
}
