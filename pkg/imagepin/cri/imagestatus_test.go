package cri

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// An image that goes while ImageStatus is about to answer is not present; and what is answered is whole.
func TestImageStatusBesideRemoval(t *testing.T) {
	s := serviceOf(t, 1)
	ref := listedRef(0)
	entries := s.base.Store.ByID(s.base.Store.Find(ref)[0].ImageID)
	var keys []imagepin.Key
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	ctx := namespaces.WithNamespace(t.Context(), ctdtest.Namespace)
	done := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			r := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: ref}}
			for {
				select {
				case <-done:
					return
				default:
				}
				resp, err := s.imageCalls.imageStatus(ctx, r, nil)
				if err != nil || (resp.GetImage() != nil && len(resp.GetImage().GetRepoTags())+len(resp.GetImage().GetRepoDigests()) == 0) {
					t.Errorf("%v, %v", resp, err)
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
	asking.Wait()
}

// namespaceStore makes containerd namespaces in a metadata database.
type namespaceStore struct{ db *metadata.DB }

func (n namespaceStore) Create(ctx context.Context, name string, labels map[string]string) error {
	return n.db.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(ctx, name, labels) })
}

// pinnedNode is a service with handlers on two snapshotters, and rules that pin.
type pinnedNode struct {
	*imageCalls
	t      *testing.T
	behind behind
}

const pinnedTag = "registry.example/team/app:v1"

func newPinnedNode(t *testing.T, consistency policy.Consistency) *pinnedNode {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "first"}, {Name: "other", Snapshotter: "second"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: consistency}, nil, []string{"pod-template-hash"})
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(store.Config{
		Records: listed{n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	pins := pin.New(pin.Config{Images: n.Images, Namespaces: namespaceStore{n.DB}})
	if err := pins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := &pinnedNode{t: t, imageCalls: New(Config{
		Namespace: ctdtest.Namespace, Store: st, Pins: pins, Runtimes: ctdtest.Always(runtimes), Settings: ctdtest.Always(&Settings{}),
		Decider: decide.New(decide.Config{Policy: ctdtest.Always(rules), Pins: pins}),
	}).imageCalls}
	p.base.sandboxes = newSandboxes(p.behind.list, p.behind.status)
	return p
}

// version is an image that the tag has meant.
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

// has records a version under references for a handler.
func (p *pinnedNode) has(v version, handler string, refs ...string) {
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

func (p *pinnedNode) lost(handler string, refs ...string) {
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

func (p *pinnedNode) pinned(scope policy.Scope, v version, by pin.By) {
	p.t.Helper()
	if _, err := p.Pins.(*pin.Store).Move(p.t.Context(), pin.ID{Scope: scope, Ref: pinnedTag}, v.root, by, false); err != nil {
		p.t.Fatal(err)
	}
}

// runs adds a sandbox of a revision, and gives the annotations of its image calls.
func (p *pinnedNode) runs(revision, handler string) map[string]string {
	s := podSandbox("sandbox-"+revision, handler, "uid-"+revision, "seen-"+revision, int64(len(p.behind.sandboxes)))
	s.Metadata.Namespace, s.Labels = "team", map[string]string{"pod-template-hash": revision}
	p.behind.sandboxes = append(p.behind.sandboxes, s)
	return s.Annotations
}

// want fails the test unless ImageStatus answers with a version; nil is that the image is absent.
func (p *pinnedNode) want(what string, spec *runtime.ImageSpec, want *version) {
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
	said := got.GetUsername()
	if got.GetUid() != nil {
		said = fmt.Sprint(got.GetUid().GetValue())
	}
	if got.GetId() != id || said != user {
		p.t.Errorf("%s: ImageStatus says %q with user %q, not %q with %q", what, got.GetId(), said, id, user)
	}
}

// Two revisions of one tag run two images with two users: each is answered for its own, and kubelet's look-up of the user, which
// says nothing, for the one that was answered last.
func TestImageStatusKnowsThePin(t *testing.T) {
	v1, v2 := versionOf("one", "1000"), versionOf("two", "")
	for _, gate := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%t", gate), func(t *testing.T) {
			p := newPinnedNode(t, policy.Workload)
			p.has(v1, "", v1.byDigest)
			p.has(v2, "", pinnedTag, v2.byDigest)
			p.pinned(policy.WorkloadScope("team", "pod-template-hash", "a"), v1, pin.ByUse)
			p.pinned(policy.WorkloadScope("team", "pod-template-hash", "b"), v2, pin.ByUse)
			spec := func(annotations map[string]string) *runtime.ImageSpec {
				s := &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}
				if gate {
					s.RuntimeHandler = "runc"
				}
				return s
			}
			user := &runtime.ImageSpec{Image: pinnedTag}
			a, b, fresh := p.runs("a", ""), p.runs("b", ""), p.runs("fresh", "")
			p.want("nobody was answered", user, &v2)
			p.want("the pinned revision", spec(a), &v1)
			p.want("its user", user, &v1)
			p.want("the other revision", spec(b), &v2)
			p.want("its user", user, &v2)
			p.want("the pinned revision", spec(a), &v1)
			p.want("a revision without a pin", spec(fresh), &v2)
			p.want("its user", user, &v2)
			p.want("another revision's digest", &runtime.ImageSpec{Image: v2.byDigest, Annotations: a}, &v2)

			p.want("the pinned revision", spec(a), &v1)
			p.lost("", v1.byDigest)
			p.want("what the last answer was has gone", user, &v2)
			p.want("the pinned digest was collected", spec(a), nil)
			p.want("the other revision", spec(b), &v2)

			// A pull for the pin brings the digest back, and is the last answer.
			p.has(v1, "", v1.byDigest)
			p.want("the digest is back", spec(a), &v1)
			p.has(v2, "other", pinnedTag, v2.byDigest)
			p.want("the pinned digest is not ready for a handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: a, RuntimeHandler: "other"}, nil)
			p.want("the other one is", &runtime.ImageSpec{Image: pinnedTag, Annotations: b, RuntimeHandler: "other"}, &v2)

			// After a restart of kubelet a pod's mark is another one. With a handler the target is known, without nothing is.
			again := spec(map[string]string{configSeenAnnotation: "seen-again"})
			p.want("a mark that is not known", again, &v2)
		})
	}
}

// After a restart of kubelet, gate off, nothing is known of a running pod: what is ready for any target is present.
func TestImageStatusWithAnUnknownMark(t *testing.T) {
	v := versionOf("one", "1000")
	p := newPinnedNode(t, policy.Off)
	p.has(v, "other", pinnedTag, v.byDigest)
	unknown := map[string]string{configSeenAnnotation: "after the restart", "io.example/note": "x"}
	p.want("an unknown mark", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown}, &v)
	p.want("the pod's own", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runs("a", "other")}, &v)
	p.want("a pod of the default class", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runs("b", "")}, nil)
	p.want("annotations without a mark", &runtime.ImageSpec{Image: pinnedTag, Annotations: map[string]string{"a": "b"}}, nil)
	unknown[handlerAnnotation] = "runc"
	p.want("an unknown mark and a handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown}, nil)
	p.want("an unknown mark with the gate on", &runtime.ImageSpec{Image: pinnedTag, Annotations: unknown, RuntimeHandler: "other"}, &v)
}

// A pin of the node, or of an operator where no rule pins, decides for a call that is of no known pod too.
func TestImageStatusKnowsTheNodesPin(t *testing.T) {
	for name, c := range map[string]struct {
		consistency policy.Consistency
		by          pin.By
	}{"rule": {policy.Node, pin.ByUse}, "operator": {policy.Off, pin.ByOperator}} {
		t.Run(name, func(t *testing.T) {
			v1, v2 := versionOf("one", "1000"), versionOf("two", "")
			p := newPinnedNode(t, c.consistency)
			p.has(v2, "", pinnedTag, v2.byDigest)
			handler := &runtime.ImageSpec{Image: pinnedTag, RuntimeHandler: "runc"}
			p.want("there is no pin", handler, &v2)
			p.pinned(policy.NodeScope, v1, c.by)
			p.want("the pinned digest is not here", handler, nil)
			p.want("nor for a pod", &runtime.ImageSpec{Image: pinnedTag, Annotations: p.runs("a", "")}, nil)
			p.want("an image ID is what it is", &runtime.ImageSpec{Image: v2.id.String(), RuntimeHandler: "runc"}, &v2)
			p.has(v1, "", v1.byDigest)
			p.want("the pinned digest is here", handler, &v1)
			p.want("and its user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
			p.lost("", v2.byDigest, pinnedTag)
			p.want("the tag is not", handler, &v1)
			p.want("and its user", &runtime.ImageSpec{Image: pinnedTag}, &v1)
		})
	}
}

// What is remembered of the answers is of images that were here, and bounded.
func TestAnswersAreBounded(t *testing.T) {
	v := versionOf("one", "1000")
	p := newPinnedNode(t, policy.Off)
	for i := range 10 {
		p.want("an image that is not here", &runtime.ImageSpec{Image: fmt.Sprintf("registry.example/none:%d", i), RuntimeHandler: "runc"}, nil)
		p.want("and its user", &runtime.ImageSpec{Image: fmt.Sprintf("registry.example/none:%d", i)}, nil)
	}
	if n := p.answered.recent.Len(); n != 0 {
		t.Errorf("%d names are remembered of images that never were here", n)
	}
	p.has(v, "", pinnedTag, v.byDigest)
	p.want("one that is", &runtime.ImageSpec{Image: pinnedTag, RuntimeHandler: "runc"}, &v)
	p.lost("", pinnedTag, v.byDigest)
	p.want("and has gone", &runtime.ImageSpec{Image: pinnedTag}, nil)
	if n := p.answered.recent.Len(); n != 0 {
		t.Errorf("%d names are remembered of an image that has gone", n)
	}

	var l lastAnswered
	for i := range maxAnswered + 10 {
		l.note(fmt.Sprint(i), imagepin.Entry{ImageID: v.id})
		if _, ok := l.get("0"); !ok { // it is in use
			t.Fatalf("a name in use is forgotten after %d others", i)
		}
	}
	if len(l.byName) != maxAnswered || l.recent.Len() != maxAnswered {
		t.Errorf("%d names are remembered", len(l.byName))
	}
	if _, ok := l.get("1"); ok {
		t.Error("the name that was not used for longest is remembered")
	}
	l.forget("0", "none")
	if _, ok := l.get("0"); ok || l.recent.Len() != len(l.byName) {
		t.Error("a name is remembered that was to be forgotten")
	}
}

// A name in the log is bounded, and so are its bytes.
func TestShortened(t *testing.T) {
	if got := shortened(pinnedTag); got != pinnedTag {
		t.Errorf("got %q", got)
	}
	if got := shortened(strings.Repeat("ä", maxLoggedName)); len(got) > maxLoggedName+len("...") || strings.ToValidUTF8(got, "") != got {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
