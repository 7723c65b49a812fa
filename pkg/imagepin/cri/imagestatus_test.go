package cri

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestImageStatusDuringRemoval checks that ImageStatus returns a complete image or none while the image is removed.
func TestImageStatusDuringRemoval(t *testing.T) {
	s := newTestService(t, 1)
	ref := testRef(0)
	entries := s.base.Store.ByID(s.base.Store.Find(ref)[0].ImageID)
	var keys []imagepin.Key
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	ctx := namespaces.WithNamespace(t.Context(), ctdtest.Namespace)
	done := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			r := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: ref}}
			for {
				select {
				case <-done:
					return
				default:
				}
				resp, err := s.imageCalls.imageStatus(ctx, r, nil)
				if err != nil || (resp.GetImage() != nil && len(resp.GetImage().GetRepoTags())+len(resp.GetImage().GetRepoDigests()) == 0) {
					t.Errorf("got %v, %v, want a complete image or none", resp, err)
					return
				}
			}
		})
	}
	for range 40 {
		if _, err := s.base.Store.Remove(ctx, keys...); err != nil {
			t.Fatal(err)
		}
		if _, err := s.base.Store.(*store.Store).Put(ctx, "", entries...); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	callers.Wait()
}

// pinnedNode is a service with pins and with handlers on two snapshotters.
type pinnedNode struct {
	*imageCalls
	t        *testing.T
	upstream fakeSandboxes
	pins     *pin.Store
	decider  *decide.Decider
	policy   func() *policy.Policy
	cluster  decide.Cluster // nil without one
	maxPins  int            // per namespace; zero means no limit
}

const pinnedTag = "registry.example/team/app:v1"

func newPinnedNode(t *testing.T, consistency policy.Consistency) *pinnedNode {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	runtimes := ctdtest.Runtimes(t, "first", runtimeplatform.Handler{Name: "other", Snapshotter: "second"})
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: consistency, AllowPodOverride: true}, nil, []string{"pod-template-hash"})
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	p := &pinnedNode{t: t}
	pins := pin.New(pin.Config{
		Images: n.Images, Namespaces: ctdtest.Namespaces{DB: n.DB}, MaxPerNamespace: func() int { return p.maxPins },
		InUse: func(ctx context.Context) (map[pin.ID]bool, error) { return (&containers{p.base}).pinsInUse(ctx) },
	})
	if err := pins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.pins, p.policy = pins, ctdtest.Always(rules)
	p.decider = decide.New(decide.Config{Policy: p.policy, Pins: pins, Images: st, Cluster: func() decide.Cluster { return p.cluster }})
	p.imageCalls = New(Config{
		Namespace: ctdtest.Namespace, Store: st, Records: ctdtest.Records{Store: n.Images}, Pins: pins, Runtimes: ctdtest.Always(runtimes), Settings: ctdtest.Always(&Settings{}),
		Decider: p.decider,
	}).imageCalls
	p.base.sandboxes = newSandboxes(p.upstream.list, p.upstream.status)
	return p
}

// version is an image that the tag has resolved to.
type version struct {
	root     ocispec.Descriptor
	id       digest.Digest
	user     string
	byDigest string
}

func versionOf(text, user string) version {
	v := version{
		root: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("index " + text), Size: 1},
		id:   digest.FromString("config " + text), user: user,
	}
	v.byDigest = "registry.example/team/app@" + v.root.Digest.String()
	return v
}

func (p *pinnedNode) ctx() context.Context {
	return namespaces.WithNamespace(p.t.Context(), ctdtest.Namespace)
}

// put records keys of a version for a handler.
func (p *pinnedNode) put(v version, handler string, refs ...string) {
	p.t.Helper()
	rt, err := p.Runtimes().Lookup(handler)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, ref := range refs {
		e := imagepin.Entry{
			Key: imagepin.Key{Ref: ref, Target: rt.Target}, Root: v.root, Manifest: v.root.Digest, ImageID: v.id,
			ReadyAt: time.Unix(1_700_000_000, 0), Source: imagepin.SourcePull, User: v.user, Record: v.byDigest, RecordTarget: v.root,
		}
		if _, err := p.Store.(*store.Store).Put(p.ctx(), "", e); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pinnedNode) remove(handler string, refs ...string) {
	p.t.Helper()
	rt, err := p.Runtimes().Lookup(handler)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, ref := range refs {
		if _, err := p.Store.Remove(p.ctx(), imagepin.Key{Ref: ref, Target: rt.Target}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pinnedNode) pin(scope policy.Scope, v version, by pin.By) {
	p.t.Helper()
	if _, err := p.pins.Move(p.t.Context(), pin.ID{Scope: scope, Ref: pinnedTag}, v.root, by, false); err != nil {
		p.t.Fatal(err)
	}
}

// runSandbox adds a sandbox of a revision and returns the annotations of its image calls.
func (p *pinnedNode) runSandbox(revision, handler string) map[string]string {
	s := podSandbox("sandbox-"+revision, handler, "uid-"+revision, "seen-"+revision, int64(len(p.upstream.sandboxes)))
	s.Metadata.Namespace, s.Metadata.Name, s.Labels = "team", "web-"+revision+"-x2x9z", map[string]string{"pod-template-hash": revision}
	p.upstream.sandboxes = append(p.upstream.sandboxes, s)
	return s.Annotations
}

// expectStatus fails the test unless ImageStatus returns a version, or no image if want is nil.
func (p *pinnedNode) expectStatus(what string, spec *runtime.ImageSpec, want *version) {
	p.t.Helper()
	resp, err := p.imageStatus(p.ctx(), &runtime.ImageStatusRequest{Image: spec}, nil)
	if err != nil {
		p.t.Errorf("%s: %v", what, err)
		return
	}
	id, user := "", ""
	if want != nil {
		id, user = want.id.String(), want.user
	}
	got := resp.GetImage()
	gotUser := got.GetUsername()
	if got.GetUid() != nil {
		gotUser = fmt.Sprint(got.GetUid().GetValue())
	}
	if got.GetId() != id || gotUser != user {
		p.t.Errorf("%s: ImageStatus returns %q with user %q, want %q with user %q", what, got.GetId(), gotUser, id, user)
	}
}

// TestImageStatusOfPinnedTag runs two revisions of one tag with two images and two users. Each gets its own image.
// kubelet's lookup of the user does not identify the pod, and gets the image of the last answer.
func TestImageStatusOfPinnedTag(t *testing.T) {
	v1, v2 := versionOf("one", "1000"), versionOf("two", "")
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			p := newPinnedNode(t, policy.Workload)
			p.put(v1, "", v1.byDigest)
			p.put(v2, "", pinnedTag, v2.byDigest)
			p.pin(policy.WorkloadScope("team", "pod-template-hash", "a"), v1, pin.ByUse)
			p.pin(policy.WorkloadScope("team", "pod-template-hash", "b"), v2, pin.ByUse)
			spec := func(annotations map[string]string) *runtime.ImageSpec {
				s := &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}
				if gate {
					s.RuntimeHandler = "runc"
				}
				return s
			}
			user := &runtime.ImageSpec{Image: pinnedTag}
			a, b, fresh := p.runSandbox("a", ""), p.runSandbox("b", ""), p.runSandbox("fresh", "")
			p.expectStatus("no earlier answer", user, &v2)
			p.expectStatus("the pinned revision", spec(a), &v1)
			p.expectStatus("its user", user, &v1)
			p.expectStatus("the other revision", spec(b), &v2)
			p.expectStatus("its user", user, &v2)
			p.expectStatus("the pinned revision", spec(a), &v1)
			p.expectStatus("a revision without a pin", spec(fresh), &v2)
			p.expectStatus("its user", user, &v2)
			p.expectStatus("another revision's digest", &runtime.ImageSpec{Image: v2.byDigest, Annotations: a}, &v2)

			p.expectStatus("the pinned revision", spec(a), &v1)
			p.remove("", v1.byDigest)
			p.expectStatus("the last answer was removed", user, &v2)
			p.expectStatus("the pinned digest was collected", spec(a), nil)
			p.expectStatus("the other revision", spec(b), &v2)

			// A pull for the pin makes the digest ready again.
			p.put(v1, "", v1.byDigest)
			p.expectStatus("the digest is ready again", spec(a), &v1)
			p.put(v2, "other", pinnedTag, v2.byDigest)
			p.expectStatus("the pinned digest is not ready for a handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: a, RuntimeHandler: "other"}, nil)
			p.expectStatus("the other digest is ready for the handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: b, RuntimeHandler: "other"}, &v2)

			// After kubelet restarts, a pod has another mark. Its target is known only if the call has a handler.
			again := spec(map[string]string{upstream.SeenAnnotation: "seen-again"})
			p.expectStatus("an unknown mark", again, &v2)
		})
	}
}

// TestImageStatusOfRemovedTag removes the record of a tag whose image stays under its digest. A call without a pod gets no
// image, whatever was answered last. A pod that is pinned to the digest still gets it, and kubelet's lookup of its user too.
func TestImageStatusOfRemovedTag(t *testing.T) {
	v := versionOf("one", "1000")
	p := newPinnedNode(t, policy.Workload)
	p.put(v, "", pinnedTag, v.byDigest)
	p.put(v, "other", pinnedTag, v.byDigest)
	p.pin(policy.WorkloadScope("team", "pod-template-hash", "a"), v, pin.ByUse)
	user := &runtime.ImageSpec{Image: pinnedTag}
	free, pinned := p.runSandbox("fresh", ""), p.runSandbox("a", "")
	for _, before := range []map[string]string{free, pinned} {
		p.put(v, "", pinnedTag)
		p.put(v, "other", pinnedTag)
		p.expectStatus("before the removal", &runtime.ImageSpec{Image: pinnedTag, Annotations: before}, &v)
		p.expectStatus("its user", user, &v)
		p.remove("", pinnedTag)
		p.expectStatus("the user while the tag has a key", user, &v)
		p.remove("other", pinnedTag)
		p.expectStatus("the user after the removal", user, nil)
		p.expectStatus("a pod without a pin", &runtime.ImageSpec{Image: pinnedTag, Annotations: free}, nil)
		p.expectStatus("a pod with a pin", &runtime.ImageSpec{Image: pinnedTag, Annotations: pinned}, &v)
		p.expectStatus("its user", user, &v)
		p.expectStatus("the digest", &runtime.ImageSpec{Image: v.byDigest}, &v)
	}
}

// TestImageStatusWithAnUnknownMark checks calls for a pod after kubelet restarts with the feature gate off. Nothing
// identifies the pod, so an image that is ready for any target is present.
func TestImageStatusWithAnUnknownMark(t *testing.T) {
	v := versionOf("one", "1000")
	p := newPinnedNode(t, policy.Off)
	p.put(v, "other", pinnedTag, v.byDigest)
	unknown := map[string]string{upstream.SeenAnnotation: "after the restart", "io.example/note": "x"}
	p.expectStatus("an unknown mark", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown}, &v)
	p.expectStatus("the pod's own mark", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runSandbox("a", "other")}, &v)
	p.expectStatus("a pod of the default class", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runSandbox("b", "")}, nil)
	p.expectStatus("annotations without a mark", &runtime.ImageSpec{Image: pinnedTag, Annotations: map[string]string{"a": "b"}}, nil)
	unknown[upstream.HandlerAnnotation] = "runc"
	p.expectStatus("an unknown mark and a handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown}, nil)
	p.expectStatus("an unknown mark with the gate on", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown, RuntimeHandler: "other"}, &v)
}

// answeredID returns the image ID that ImageStatus returns.
func (p *pinnedNode) answeredID(spec *runtime.ImageSpec) string {
	p.t.Helper()
	resp, err := p.imageStatus(p.ctx(), &runtime.ImageStatusRequest{Image: spec}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.GetImage().GetId()
}

// pullerOf is a puller whose pulls return one entry.
type pullerOf struct {
	Puller
	entry imagepin.Entry
}

func (p pullerOf) Pull(context.Context, pull.Request) (pull.Pulled, error) {
	return pull.Pulled{Entry: p.entry}, nil
}

// TestUnknownMarkIgnoresPinsOfOthers restarts a container after a restart of kubelet. The last answer for its tag is the
// digest that another revision is pinned to. The container runs the digest that the tag has on the node, as the user of
// that image, and its use pins that digest.
func TestUnknownMarkIgnoresPinsOfOthers(t *testing.T) {
	v1, v2 := versionOf("one", "0"), versionOf("two", "1000")
	askAsPinned := func(p *pinnedNode, annotations map[string]string) {
		p.expectStatus("the pinned revision", &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}, &v1)
	}
	pullAsPinned := func(p *pinnedNode, annotations map[string]string) {
		p.base.Puller = pullerOf{entry: p.Store.Find(v1.byDigest)[0]}
		spec := &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}
		if _, err := p.pullImage(p.ctx(), &runtime.PullImageRequest{Image: spec}, nil); err != nil {
			p.t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		consistency policy.Consistency
		by          pin.By
		asPinned    func(*pinnedNode, map[string]string)
		wantPins    int
	}{
		"ImageStatus of a revision pinned by a rule":      {policy.Workload, pin.ByUse, askAsPinned, 2},
		"PullImage of a revision pinned by a rule":        {policy.Workload, pin.ByUse, pullAsPinned, 2},
		"ImageStatus of a revision pinned by an operator": {policy.Off, pin.ByOperator, askAsPinned, 1},
		"PullImage of a revision pinned by an operator":   {policy.Off, pin.ByOperator, pullAsPinned, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPinnedNode(t, test.consistency)
			p.put(v1, "", v1.byDigest)
			p.put(v2, "", pinnedTag, v2.byDigest)
			p.pin(policy.WorkloadScope("team", "pod-template-hash", "a"), v1, test.by)
			test.asPinned(p, p.runSandbox("a", ""))

			restarted := &runtime.ImageSpec{Image: pinnedTag, Annotations: map[string]string{upstream.SeenAnnotation: "after the restart"}}
			p.expectStatus("an unknown mark", restarted, &v2)
			p.expectStatus("its user", &runtime.ImageSpec{Image: pinnedTag}, &v2)
			c, pod := &containers{p.base}, policy.Pod{Namespace: "other", Name: "web", UID: "uid", Labels: map[string]string{"pod-template-hash": "fresh"}}
			created := &runtime.ImageSpec{Image: p.answeredID(restarted), UserSpecifiedImage: pinnedTag}
			images, err := c.resolveImages(p.ctx(), []*runtime.ImageSpec{created}, pod, p.Runtimes().Default().Target)
			if err != nil || len(images) != 1 || images[0].Root.Digest != v2.root.Digest {
				t.Fatalf("CreateContainer resolves to %v, %v, want %s", images, err, v2.root.Digest)
			}
			images[0].Verified = true
			if decided, err := p.decider.Confirm(p.ctx(), usedOf(images)...); err != nil || !decided {
				t.Errorf("pinned: %t, %v, want the digest that runs", decided, err)
			}
			if pins := p.pins.Scopes(pinnedTag); len(pins) != test.wantPins {
				t.Errorf("got pins %v, want %d", pins, test.wantPins)
			}

			test.asPinned(p, p.upstream.sandboxes[0].GetAnnotations())
			p.expectStatus("the pinned revision's user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
		})
	}
}

// TestImageStatusOfNodePin checks that a node pin, by a rule or by an operator, applies to calls without a known pod.
func TestImageStatusOfNodePin(t *testing.T) {
	for name, c := range map[string]struct {
		consistency policy.Consistency
		by          pin.By
	}{"rule": {policy.Node, pin.ByUse}, "operator": {policy.Off, pin.ByOperator}} {
		t.Run(name, func(t *testing.T) {
			v1, v2 := versionOf("one", "1000"), versionOf("two", "")
			p := newPinnedNode(t, c.consistency)
			p.put(v2, "", pinnedTag, v2.byDigest)
			handler := &runtime.ImageSpec{Image: pinnedTag, RuntimeHandler: "runc"}
			unknown := &runtime.ImageSpec{Image: pinnedTag, Annotations: map[string]string{upstream.SeenAnnotation: "after the restart"}}
			p.expectStatus("no pin", handler, &v2)
			p.pin(policy.NodeScope, v1, c.by)
			p.expectStatus("the pinned digest is not on the node", handler, nil)
			p.expectStatus("the pinned digest is not on the node, for an unknown mark", unknown, &v2)
			p.expectStatus("the pinned digest is not on the node, for a pod", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runSandbox("a", "")}, nil)
			p.expectStatus("an image ID is not affected", &runtime.ImageSpec{Image: v2.id.String(), RuntimeHandler: "runc"}, &v2)
			p.put(v1, "", v1.byDigest)
			p.expectStatus("the pinned digest is on the node", handler, &v1)
			p.expectStatus("its user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
			p.answered.Remove(pinnedTag)
			p.expectStatus("the pinned digest is on the node, for an unknown mark", unknown, &v1)
			p.expectStatus("its user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
			p.remove("", v2.byDigest, pinnedTag)
			p.expectStatus("only the pinned digest is on the node", handler, &v1)
			p.expectStatus("its user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
			p.expectStatus("only the pinned digest is on the node, for an unknown mark", unknown, &v1)
			p.remove("", v1.byDigest)
			p.expectStatus("nothing is on the node, for an unknown mark", unknown, nil)
		})
	}
}

// TestImageStatusOfUnknownPodThatOverrides checks calls with an unknown mark whose annotations select the scope of the
// pod's pin.
func TestImageStatusOfUnknownPodThatOverrides(t *testing.T) {
	v1, v2 := versionOf("one", "1000"), versionOf("two", "")
	unknown := map[string]string{upstream.SeenAnnotation: "after the restart"}
	for _, test := range []struct {
		rule, annotation policy.Consistency
		want             *version
	}{
		{policy.Off, policy.Node, &v1},
		{policy.Node, policy.Off, &v2},
	} {
		p := newPinnedNode(t, test.rule)
		p.put(v1, "", v1.byDigest)
		p.put(v2, "", pinnedTag, v2.byDigest)
		p.pin(policy.NodeScope, v1, pin.ByUse)
		unknown[policy.ConsistencyAnnotation] = string(test.annotation)
		p.expectStatus(fmt.Sprintf("rule %s, annotation %s", test.rule, test.annotation), &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown}, test.want)
	}
}

// TestAnswersAreBounded checks that the cache has only images on the node, and a bounded size.
func TestAnswersAreBounded(t *testing.T) {
	v := versionOf("one", "1000")
	p := newPinnedNode(t, policy.Off)
	for i := range 10 {
		p.expectStatus("an image that is not on the node", &runtime.ImageSpec{Image: fmt.Sprintf("registry.example/none:%d", i), RuntimeHandler: "runc"}, nil)
		p.expectStatus("its user", &runtime.ImageSpec{Image: fmt.Sprintf("registry.example/none:%d", i)}, nil)
	}
	if n := p.answered.Len(); n != 0 {
		t.Errorf("cached %d names of images that were never on the node", n)
	}
	p.put(v, "", pinnedTag, v.byDigest)
	p.expectStatus("an image on the node", &runtime.ImageSpec{Image: pinnedTag, RuntimeHandler: "runc"}, &v)
	p.remove("", pinnedTag, v.byDigest)
	p.expectStatus("a removed image", &runtime.ImageSpec{Image: pinnedTag}, nil)
	if n := p.answered.Len(); n != 0 {
		t.Errorf("cached %d names of a removed image", n)
	}

	used := v.byDigest
	p.answered.Add(used, answer{imagepin.Entry{ImageID: v.id}, true})
	for i := range maxAnswered + 10 {
		p.answered.Add(fmt.Sprint(i), answer{imagepin.Entry{ImageID: v.id}, true})
		if _, ok := p.answered.Get(used); !ok { // Get marks it as used
			t.Fatalf("a used name was evicted after %d others", i)
		}
	}
	if n := p.answered.Len(); n != maxAnswered {
		t.Errorf("cached %d names, want %d", n, maxAnswered)
	}
	if _, ok := p.answered.Get("0"); ok {
		t.Error("the least recently used name was not evicted")
	}
}

// TestTruncateName checks that a name in the log has a bounded length.
func TestTruncateName(t *testing.T) {
	if got := truncateName(pinnedTag); got != pinnedTag {
		t.Errorf("got %q, want %q", got, pinnedTag)
	}
	if got := truncateName(strings.Repeat("ä", maxLoggedName)); len(got) > maxLoggedName+len("...") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("got %d bytes, or invalid UTF-8: %q", len(got), got)
	}
}
