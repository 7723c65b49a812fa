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

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
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
func (s *base) lookup(handler string) (runtimeplatform.Runtime, error) {
	rt, err := s.Runtimes().Lookup(handler)
	return rt, imagepin.UnknownHandler(err)
}

// caller is what an image call says of the pod that it is for.
type caller struct {
	runtime runtimeplatform.Runtime
	// strict reports whether the call says anything of a pod that is known
	// here: a handler, a sandbox, or annotations other than an unknown mark.
	strict bool
	// pod is the zero value where the call belongs to no known sandbox.
	pod policy.Pod
}

// callerOf finds the runtime of an image call: the handler that it names, or
// that of the sandbox it belongs to, or what its annotation says, or the
// default. The pod is looked up where the handler is not named, and where
// wantPod says so. It fails with [imagepin.UnknownRuntimeHandler].
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
		handler = cmp.Or(spec.GetAnnotations()[handlerAnnotation], config.GetAnnotations()[handlerAnnotation])
	}
	if known != nil {
		c.pod = known.pod
		s.sandboxes.learn(known, config)
	}
	// After a restart of kubelet, the mark of a running pod is another one
	// than its sandbox has: it does not say which pod's it is.
	unknownMark := len(marks) > 0 && known == nil
	c.strict = handler != "" || known != nil || config != nil || (len(spec.GetAnnotations()) > 0 && !unknownMark)
	var err error
	c.runtime, err = s.lookup(handler)
	return c, err
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

// sandboxes remembers the sandboxes of the node. It is a cache of what the
// service behind knows, and ahead of it while a sandbox is being made.
type sandboxes struct {
	list func(context.Context) ([]*runtime.PodSandbox, error)
	// status gives one sandbox by its ID or the beginning of it.
	status func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error)

	mu      sync.Mutex
	marks   map[string]*sandbox
	ids     map[string]*sandbox
	refresh *semaphore.Weighted // held while upstream is asked for all
}

func newSandboxes(list func(context.Context) ([]*runtime.PodSandbox, error), status func(ctx context.Context, id string) (*runtime.PodSandboxStatus, error)) *sandboxes {
	return &sandboxes{
		list: list, status: status, refresh: semaphore.NewWeighted(1), marks: make(map[string]*sandbox), ids: make(map[string]*sandbox),
	}
}

// sandbox is what is remembered of one. Handler and pod do not change once it is
// added.
type sandbox struct {
	handler string
	pod     policy.Pod
	// marks are those that it was made with, and learned the one that a kubelet has
	// given its pod since; the lock of sandboxes guards them.
	marks   []string
	learned string
}

// byMark finds the sandbox that has one of the marks; nil where none has.
func (x *sandboxes) byMark(ctx context.Context, marks []string) (*sandbox, error) {
	if s := x.marked(marks); s != nil {
		return s, nil
	}
	if err := x.reload(ctx); err != nil {
		return nil, err
	}
	return x.marked(marks), nil
}

func (x *sandboxes) marked(marks []string) *sandbox {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range marks {
		if s := x.marks[m]; s != nil {
			return s
		}
	}
	return nil
}

// byID finds a sandbox by its ID or the beginning of it, which is what crictl
// shows; nil where there is none.
func (x *sandboxes) byID(ctx context.Context, id string) (*sandbox, error) {
	full, err := x.fullID(ctx, id)
	if err != nil || full == "" {
		return nil, err
	}
	return x.identified(full), nil
}

// fullID gives the whole ID of a sandbox, which is remembered then; it is empty
// where there is no such sandbox.
func (x *sandboxes) fullID(ctx context.Context, id string) (string, error) {
	if id == "" || x.identified(id) != nil {
		return id, nil
	}
	if err := x.reload(ctx); err != nil {
		return "", err
	}
	if x.identified(id) != nil {
		return id, nil
	}
	found, err := x.status(ctx, id)
	switch {
	case status.Code(err) == codes.NotFound:
		return "", nil
	case err != nil:
		return "", err
	case x.identified(found.GetId()) == nil:
		x.add(found.GetId(), newSandbox(found))
	}
	return found.GetId(), nil
}

func (x *sandboxes) identified(id string) *sandbox {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ids[id]
}

// described is what the messages of the CRI about a sandbox have in common.
type described interface {
	GetRuntimeHandler() string
	GetMetadata() *runtime.PodSandboxMetadata
	GetLabels() map[string]string
	GetAnnotations() map[string]string
}

func newSandbox(d described) *sandbox {
	return &sandbox{
		handler: d.GetRuntimeHandler(),
		pod:     policy.Pod{Namespace: d.GetMetadata().GetNamespace(), Labels: d.GetLabels(), Annotations: d.GetAnnotations()},
		marks:   podMarks(d.GetMetadata().GetUid(), d.GetAnnotations()),
	}
}

// reload adds what the service behind has and this does not.
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

// add notes a sandbox; id is empty while it is being made.
func (x *sandboxes) add(id string, s *sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if known := x.ids[id]; known != nil && s.learned == "" {
		s.learned = known.learned
	}
	for _, m := range s.all() {
		x.marks[m] = s
	}
	if id != "" {
		x.ids[id] = s
	}
}

// all are the marks of a sandbox. The caller holds the lock.
func (s *sandbox) all() []string {
	if s.learned == "" {
		return s.marks
	}
	return append(slices.Clone(s.marks), s.learned)
}

// learn notes the mark that a sandbox's pod has by now, as a call says that is
// known to be for the sandbox. A kubelet that was restarted gives a running pod
// another mark than its sandbox was made with, and asks for images by that alone.
func (x *sandboxes) learn(s *sandbox, config *runtime.PodSandboxConfig) {
	marks := podMarks("", config.GetAnnotations())
	if len(marks) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.marks[marks[0]] != nil {
		return
	}
	if x.marks[s.learned] == s {
		delete(x.marks, s.learned)
	}
	s.learned = marks[0]
	if len(s.marks) > 0 && x.marks[s.marks[0]] == s { // it is remembered still
		x.marks[s.learned] = s
	}
}

// remove forgets a sandbox that is gone or could not be made.
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
	for _, m := range s.all() {
		if x.marks[m] == s {
			delete(x.marks, m)
		}
	}
}
