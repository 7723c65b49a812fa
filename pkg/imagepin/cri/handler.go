package cri

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// lookup returns the runtime of a handler. It fails with [imagepin.UnknownRuntimeHandler].
func (s *base) lookup(handler string) (runtimeplatform.Runtime, error) {
	rt, err := s.Runtimes().Lookup(handler)
	return rt, imagepin.UnknownHandler(err)
}

// caller is what is known about the pod that an image call is for.
type caller struct {
	runtime runtimeplatform.Runtime
	// strict reports whether the call identifies its pod or target: by a handler, a sandbox, or annotations other than
	// an unknown mark.
	strict bool
	// unknownPod reports whether the call is for a pod, but has nothing that identifies the pod or its target.
	unknownPod bool
	// pod is the zero value if the call belongs to no known sandbox. If unknownPod is set, it has annotations only.
	pod policy.Pod
}

// callerOf finds the runtime of an image call. In order of precedence it is the handler that the call names, the
// handler of the sandbox that the call belongs to, the handler in the annotation, or the default. callerOf looks up the
// pod if the call names no handler, or if wantPod is set. It fails with [imagepin.UnknownRuntimeHandler].
func (s *base) callerOf(ctx context.Context, spec *runtime.ImageSpec, config *runtime.PodSandboxConfig, wantPod bool) (caller, error) {
	handler := spec.GetRuntimeHandler()
	marks := podMarks(config.GetMetadata().GetUid(), config.GetAnnotations(), spec.GetAnnotations())
	var known *sandbox
	if len(marks) > 0 && (handler == "" || wantPod) {
		var err error
		if known, err = s.sandboxes.byMark(ctx, marks); err != nil {
			return caller{}, err
		}
	}
	var c caller
	switch {
	case handler != "":
	case known != nil:
		handler = known.handler
	default:
		handler = cmp.Or(spec.GetAnnotations()[upstream.HandlerAnnotation], config.GetAnnotations()[upstream.HandlerAnnotation])
	}
	if known != nil {
		c.pod = known.pod
		s.sandboxes.updateMark(known, config)
	}
	// After kubelet restarts, the mark of a running pod differs from the mark of its sandbox, so it does not identify
	// the pod.
	unknownMark := len(marks) > 0 && known == nil
	c.strict = handler != "" || known != nil || config != nil || (len(spec.GetAnnotations()) > 0 && !unknownMark)
	if c.unknownPod = unknownMark && !c.strict; c.unknownPod {
		c.pod.Annotations = spec.GetAnnotations()
	}
	var err error
	c.runtime, err = s.lookup(handler)
	return c, err
}

// sandboxHandler returns the handler that a sandbox is created with.
func sandboxHandler(r *runtime.RunPodSandboxRequest) string {
	if h := r.GetRuntimeHandler(); h != "" {
		return h
	}
	if r.GetConfig().GetAnnotations()[upstream.UntrustedAnnotation] == "true" {
		return upstream.UntrustedHandler
	}
	return ""
}

// podMarks returns the marks that identify a pod, in order of trust: its UID, and the time at which kubelet saw it.
func podMarks(uid string, annotations ...map[string]string) []string {
	var marks []string
	if uid != "" {
		marks = append(marks, "uid "+uid)
	}
	for _, a := range annotations {
		if seen := a[upstream.SeenAnnotation]; seen != "" {
			marks = append(marks, "seen "+seen)
		}
	}
	return marks
}

// sandboxes caches upstream's sandboxes. It also has the sandboxes that are being created, which upstream does not know
// yet.
type sandboxes struct {
	list func(context.Context) ([]*runtime.PodSandbox, error)
	// status returns one sandbox by its ID or a prefix of it.
	status func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error)

	mu      sync.Mutex
	marks   map[string]*sandbox
	ids     map[string]*sandbox
	refresh *semaphore.Weighted // held while the sandboxes are listed
}

func newSandboxes(list func(context.Context) ([]*runtime.PodSandbox, error), status func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error)) *sandboxes {
	return &sandboxes{
		list: list, status: status, refresh: semaphore.NewWeighted(1), marks: make(map[string]*sandbox), ids: make(map[string]*sandbox),
	}
}

// sandbox is a cached sandbox. Handler and pod do not change once it is added.
type sandbox struct {
	handler string
	pod     policy.Pod
	// marks are the marks that the sandbox was created with. latestMark is the mark that kubelet has given its pod
	// since. The mutex of sandboxes guards both.
	marks      []string
	latestMark string
}

// byMark finds the sandbox that has one of the marks. It returns nil if there is none.
func (x *sandboxes) byMark(ctx context.Context, marks []string) (*sandbox, error) {
	if s := x.findByMark(marks); s != nil {
		return s, nil
	}
	if err := x.reload(ctx); err != nil {
		return nil, err
	}
	return x.findByMark(marks), nil
}

func (x *sandboxes) findByMark(marks []string) *sandbox {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range marks {
		if s := x.marks[m]; s != nil {
			return s
		}
	}
	return nil
}

// byID finds a sandbox by its ID, or by a prefix of it as crictl shows it. It returns nil if there is none.
func (x *sandboxes) byID(ctx context.Context, id string) (*sandbox, error) {
	full, err := x.fullID(ctx, id)
	if err != nil || full == "" {
		return nil, err
	}
	return x.findByID(full), nil
}

// fullID returns the full ID of a sandbox and adds the sandbox to the cache. It returns "" if there is no such sandbox.
func (x *sandboxes) fullID(ctx context.Context, id string) (string, error) {
	if id == "" || x.findByID(id) != nil {
		return id, nil
	}
	if err := x.reload(ctx); err != nil {
		return "", err
	}
	if x.findByID(id) != nil {
		return id, nil
	}
	found, err := x.status(ctx, id)
	switch {
	case status.Code(err) == codes.NotFound:
		return "", nil
	case err != nil:
		return "", err
	case x.findByID(found.GetId()) == nil:
		x.add(found.GetId(), newSandbox(found))
	}
	return found.GetId(), nil
}

func (x *sandboxes) findByID(id string) *sandbox {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ids[id]
}

// sandboxMessage has the common fields of the CRI messages about a sandbox.
type sandboxMessage interface {
	podMessage
	GetRuntimeHandler() string
}

func newSandbox(d sandboxMessage) *sandbox {
	return &sandbox{
		handler: d.GetRuntimeHandler(),
		pod:     newPod(d),
		marks:   podMarks(d.GetMetadata().GetUid(), d.GetAnnotations()),
	}
}

// reload adds upstream's sandboxes to the cache.
func (x *sandboxes) reload(ctx context.Context) error {
	if err := x.refresh.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	defer x.refresh.Release(1)
	all, err := x.list(ctx)
	if err != nil {
		return err
	}
	// A pod's latest sandbox wins.
	slices.SortFunc(all, func(a, b *runtime.PodSandbox) int { return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()) })
	for _, s := range all {
		x.add(s.GetId(), newSandbox(s))
	}
	return nil
}

// add caches a sandbox. id is empty while the sandbox is being created.
func (x *sandboxes) add(id string, s *sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if known := x.ids[id]; known != nil && s.latestMark == "" {
		s.latestMark = known.latestMark
	}
	for _, m := range s.allMarks() {
		x.marks[m] = s
	}
	if id != "" {
		x.ids[id] = s
	}
}

// allMarks returns the marks of a sandbox. The caller holds the mutex.
func (s *sandbox) allMarks() []string {
	if s.latestMark == "" {
		return s.marks
	}
	return append(slices.Clone(s.marks), s.latestMark)
}

// updateMark adds the current mark of a pod to its sandbox. config is from a call that is known to be for the sandbox.
// After kubelet restarts, a running pod has a mark that its sandbox was not created with, and image calls may have that
// mark only.
func (x *sandboxes) updateMark(s *sandbox, config *runtime.PodSandboxConfig) {
	marks := podMarks("", config.GetAnnotations())
	if len(marks) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.marks[marks[0]] != nil {
		return
	}
	if x.marks[s.latestMark] == s {
		delete(x.marks, s.latestMark)
	}
	s.latestMark = marks[0]
	if len(s.marks) > 0 && x.marks[s.marks[0]] == s { // it is still cached
		x.marks[s.latestMark] = s
	}
}

// remove removes a sandbox that was removed or could not be created.
func (x *sandboxes) remove(id string, s *sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s == nil {
		s = x.ids[id]
	}
	if s == nil {
		return
	}
	delete(x.ids, id)
	for _, m := range s.allMarks() {
		if x.marks[m] == s {
			delete(x.marks, m)
		}
	}
}
