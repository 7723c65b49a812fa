package cri

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// fakeSandboxes has the sandboxes of upstream, and counts the calls.
type fakeSandboxes struct {
	sandboxes []*runtime.PodSandbox
	unlisted  []*runtime.PodSandboxStatus
	lists     int
	statuses  int
	err       error
}

func (b *fakeSandboxes) list(context.Context) ([]*runtime.PodSandbox, error) {
	b.lists++
	return b.sandboxes, b.err
}

// status resolves a prefix of an ID, as containerd's CRI does.
func (b *fakeSandboxes) status(_ context.Context, id string) (*runtime.PodSandboxStatus, error) {
	b.statuses++
	if b.err != nil {
		return nil, b.err
	}
	for _, s := range b.sandboxes {
		if strings.HasPrefix(s.GetId(), id) {
			return &runtime.PodSandboxStatus{
				Id: s.GetId(), RuntimeHandler: s.GetRuntimeHandler(), Metadata: s.GetMetadata(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
			}, nil
		}
	}
	for _, s := range b.unlisted {
		if strings.HasPrefix(s.GetId(), id) {
			return s, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such sandbox")
}

func podSandbox(id, handler, uid, seen string, created int64) *runtime.PodSandbox {
	s := &runtime.PodSandbox{
		Id: id, RuntimeHandler: handler, CreatedAt: created,
		Metadata: &runtime.PodSandboxMetadata{Uid: uid},
	}
	if seen != "" {
		s.Annotations = map[string]string{upstream.SeenAnnotation: seen}
	}
	return s
}

func TestSandboxes(t *testing.T) {
	b := &fakeSandboxes{sandboxes: []*runtime.PodSandbox{
		podSandbox("new", "kata", "pod", "later", 2),
		podSandbox("old", "runc", "pod", "earlier", 1),
		podSandbox("other", "", "else", "", 3),
	}}
	x := newSandboxes(b.list, b.status)
	byMark := func(want string, known bool, marks ...string) {
		t.Helper()
		if got, err := x.byMark(t.Context(), marks); (got != nil) != known || (known && got.handler != want) || err != nil {
			t.Errorf("marks %v: got %v, %v, want handler %q (known: %t)", marks, got, err, want, known)
		}
	}
	byID := func(want string, known bool, id string) {
		t.Helper()
		if got, err := x.byID(t.Context(), id); (got != nil) != known || (known && got.handler != want) || err != nil {
			t.Errorf("sandbox %s: got %v, %v, want handler %q (known: %t)", id, got, err, want, known)
		}
	}
	byMark("kata", true, "uid pod") // the newest wins, in any order
	byMark("runc", true, "seen earlier")
	byMark("kata", true, "seen later", "uid else")
	byMark("", true, "uid else")
	byID("runc", true, "old")
	byID("kata", true, "new")
	if b.lists != 1 {
		t.Errorf("listed %d times for known sandboxes, want 1", b.lists)
	}
	byMark("", false, "uid none")
	byID("", false, "none")
	if b.lists != 3 {
		t.Errorf("listed %d times after unknown sandboxes, want 3", b.lists)
	}

	// A sandbox is known while upstream creates it.
	created := &sandbox{handler: "arm", marks: []string{"uid fresh", "seen now"}}
	x.add("", created)
	byMark("arm", true, "uid fresh")
	x.add("fresh", created)
	byID("arm", true, "fresh")
	if b.lists != 3 {
		t.Errorf("listed %d times after a new sandbox, want 3", b.lists)
	}
	x.remove("fresh", nil)
	byMark("", false, "uid fresh")
	byID("", false, "fresh")

	// A failed attempt does not remove what a later attempt added.
	first, second := &sandbox{handler: "a", marks: []string{"uid retry"}}, &sandbox{handler: "b", marks: []string{"uid retry"}}
	x.add("", first)
	x.add("", second)
	x.remove("", first)
	byMark("b", true, "uid retry")
	x.remove("", second)
	byMark("", false, "uid retry")
	x.remove("unknown", nil)

	b.sandboxes = nil
	x.remove("new", nil)
	byMark("", false, "uid pod")

	b.err = errors.New("no answer")
	if _, err := x.byMark(t.Context(), []string{"uid none"}); !errors.Is(err, b.err) {
		t.Errorf("byMark: got %v, want %v", err, b.err)
	}
	if _, err := x.byID(t.Context(), "none"); !errors.Is(err, b.err) {
		t.Errorf("byID: got %v, want %v", err, b.err)
	}
}

func TestCallerOf(t *testing.T) {
	set := ctdtest.Runtimes(t, "s",
		runtimeplatform.Handler{Name: "kata", Snapshotter: "s"}, runtimeplatform.Handler{Name: "arm", Snapshotter: "s", Platform: "linux/arm64"})
	b := &fakeSandboxes{sandboxes: []*runtime.PodSandbox{podSandbox("1", "kata", "pod", "time", 1)}}
	annotated := func(pairs ...string) map[string]string {
		m := make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	pod := func(uid string, annotations map[string]string) *runtime.PodSandboxConfig {
		return &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Uid: uid}, Annotations: annotations}
	}
	for name, c := range map[string]struct {
		spec    *runtime.ImageSpec
		sandbox *runtime.PodSandboxConfig
		want    string
		strict  bool
	}{
		"no spec":                        {nil, nil, "runc", false},
		"image only":                     {&runtime.ImageSpec{Image: "i"}, nil, "runc", false},
		"handler":                        {&runtime.ImageSpec{RuntimeHandler: "arm"}, nil, "arm", true},
		"handler overrides sandbox":      {&runtime.ImageSpec{RuntimeHandler: "arm"}, pod("pod", nil), "arm", true},
		"pod by UID":                     {&runtime.ImageSpec{}, pod("pod", nil), "kata", true},
		"pod by image annotation":        {&runtime.ImageSpec{Annotations: annotated(upstream.SeenAnnotation, "time")}, nil, "kata", true},
		"pod by sandbox annotation":      {&runtime.ImageSpec{}, pod("", annotated(upstream.SeenAnnotation, "time")), "kata", true},
		"sandbox overrides annotation":   {&runtime.ImageSpec{Annotations: annotated(upstream.HandlerAnnotation, "arm", upstream.SeenAnnotation, "time")}, nil, "kata", true},
		"annotation of the image":        {&runtime.ImageSpec{Annotations: annotated(upstream.HandlerAnnotation, "arm")}, nil, "arm", true},
		"annotation of the pod":          {&runtime.ImageSpec{}, pod("unknown", annotated(upstream.HandlerAnnotation, "arm")), "arm", true},
		"unrelated annotations":          {&runtime.ImageSpec{Annotations: annotated("a", "b")}, nil, "runc", true},
		"unknown sandbox":                {&runtime.ImageSpec{}, pod("unknown", nil), "runc", true},
		"unknown mark":                   {&runtime.ImageSpec{Annotations: annotated(upstream.SeenAnnotation, "after a restart", "a", "b")}, nil, "runc", false},
		"handler and an unknown mark":    {&runtime.ImageSpec{RuntimeHandler: "arm", Annotations: annotated(upstream.SeenAnnotation, "after a restart")}, nil, "arm", true},
		"annotation and an unknown mark": {&runtime.ImageSpec{Annotations: annotated(upstream.HandlerAnnotation, "arm", upstream.SeenAnnotation, "after a restart")}, nil, "arm", true},
		"unknown handler":                {&runtime.ImageSpec{RuntimeHandler: "gone"}, nil, "", true},
		"unknown handler by annotation":  {&runtime.ImageSpec{Annotations: annotated(upstream.HandlerAnnotation, "gone")}, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &base{Config: Config{Runtimes: ctdtest.Always(set)}}
			s.sandboxes = newSandboxes(b.list, nil)
			got, err := s.callerOf(t.Context(), c.spec, c.sandbox, false)
			if c.want == "" {
				var e *imagepin.Error
				if !errors.As(err, &e) || e.Reason != imagepin.UnknownRuntimeHandler || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "kata") {
					t.Errorf("got %v, want an UnknownRuntimeHandler error that lists the handlers", err)
				}
				return
			}
			if err != nil || got.runtime.Handler != c.want || got.strict != c.strict {
				t.Errorf("got %q, strict %v, %v, want %q, strict %v", got.runtime.Handler, got.strict, err, c.want, c.strict)
			}
		})
	}
}

// TestSandboxByShortID checks that a prefix of an ID, as crictl shows it, finds and removes a sandbox.
func TestSandboxByShortID(t *testing.T) {
	b := &fakeSandboxes{
		sandboxes: []*runtime.PodSandbox{podSandbox("abcdef0123", "kata", "pod", "time", 1)},
		unlisted:  []*runtime.PodSandboxStatus{{Id: "fedcba9876", RuntimeHandler: "arm", Metadata: &runtime.PodSandboxMetadata{Uid: "other"}}},
	}
	s := &base{runtimes: emptyUpstream{}}
	s.sandboxes = newSandboxes(b.list, b.status)
	for id, want := range map[string]string{"abc": "kata", "abcdef0123": "kata", "fed": "arm", "fedcba9876": "arm"} {
		if got, err := s.sandboxes.byID(t.Context(), id); err != nil || got == nil || got.handler != want {
			t.Errorf("sandbox %s: got %v, %v, want handler %s", id, got, err, want)
		}
	}
	if len(s.sandboxes.ids) != 2 {
		t.Errorf("cached %d IDs for 2 sandboxes", len(s.sandboxes.ids))
	}
	calls := b.statuses
	for _, id := range []string{"", "abcdef0123"} {
		if _, err := s.sandboxes.byID(t.Context(), id); err != nil || b.statuses != calls {
			t.Errorf("sandbox %q: called upstream, or failed: %v", id, err)
		}
	}
	removed := ""
	upstreamRemove := func(_ context.Context, r *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
		removed = r.GetPodSandboxId()
		b.sandboxes = nil
		return &runtime.RemovePodSandboxResponse{}, nil
	}
	if _, err := (&containers{s}).removePodSandbox(t.Context(), &runtime.RemovePodSandboxRequest{PodSandboxId: "abc"}, upstreamRemove); err != nil || removed != "abc" {
		t.Errorf("removed sandbox %q, %v, want abc", removed, err)
	}
	if got, err := s.sandboxes.byMark(t.Context(), []string{"uid pod"}); got != nil || err != nil {
		t.Errorf("a removed sandbox is still cached: %v, %v", got, err)
	}
	// A sandbox is removed even if upstream cannot resolve its ID.
	b.err = errors.New("no answer")
	removed = ""
	if _, err := (&containers{s}).removePodSandbox(t.Context(), &runtime.RemovePodSandboxRequest{PodSandboxId: "x"}, upstreamRemove); err != nil || removed != "x" {
		t.Errorf("removed sandbox %q, %v, want x", removed, err)
	}
}

func TestSandboxHandler(t *testing.T) {
	untrusted := map[string]string{upstream.UntrustedAnnotation: "true"}
	for want, r := range map[string]*runtime.RunPodSandboxRequest{
		"":                        {Config: &runtime.PodSandboxConfig{Annotations: map[string]string{upstream.UntrustedAnnotation: "false"}}},
		"kata":                    {RuntimeHandler: "kata", Config: &runtime.PodSandboxConfig{Annotations: untrusted}},
		upstream.UntrustedHandler: {Config: &runtime.PodSandboxConfig{Annotations: untrusted}},
	} {
		if got := sandboxHandler(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
