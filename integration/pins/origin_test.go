package pins

import (
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// originRules resolve tags at the origin.
const originRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/origin/**"]
  resolve_at = "origin"
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/always/**"]
  resolve_at = "origin"
  pull_behavior = "always"
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/node/**"]
  resolve_at = "origin"
  version_consistency = "node"
`

// mirrored is a node whose registry has a mirror with the capability resolve. The mirror has content by digest, and older tags.
type mirrored struct {
	*testkit.Rig
	mirror *registry.Registry
}

func newMirrored(t *testing.T) mirrored {
	r := testkit.NewRig(t, node.Options{Extra: originRules})
	r.MustPull(r.Options().SandboxImage, "")
	m := mirrored{Rig: r, mirror: testkit.Registry(t)}
	if err := r.WriteHosts(r.Reg.Host(), node.Mirror(r.Reg.URL(), m.mirror.URL())); err != nil {
		t.Fatal(err)
	}
	return m
}

// pushed is what a tag means: the image ID and the digest at the origin, and the image ID at the mirror.
type pushed struct{ id, digest, stale string }

// push makes a tag mean one version at the origin, and an older one at the mirror, which has the content of both.
func (m mirrored) push(repo string) (p pushed) {
	m.T.Helper()
	now, old := testkit.App(m.T, images.Options{Version: "new"}), testkit.App(m.T, images.Options{Version: "stale"})
	p.digest = testkit.Push(m.T, m.Reg, repo+":v1", now).String()
	testkit.Push(m.T, m.mirror, repo+":other", now)
	testkit.Push(m.T, m.mirror, repo+":v1", old)
	for id, img := range map[*string]v1.Image{&p.id: now, &p.stale: old} {
		name, err := img.ConfigName()
		if err != nil {
			m.T.Fatal(err)
		}
		*id = name.String()
	}
	m.Reg.Reset()
	m.mirror.Reset()
	return p
}

// want fails the test unless the origin and the mirror got exactly these requests since the last call.
func (m mirrored) want(why string, origin, mirror []string) {
	m.T.Helper()
	m.WantRequests(why+", origin", origin...)
	at := *m.Rig
	at.Reg = m.mirror
	at.WantRequests(why+", mirror", mirror...)
}

// pulls are the requests for the content of an image of which the node has nothing.
func pulls(t *testing.T) []string {
	layers, err := testkit.App(t, images.Options{}).Layers()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Repeat([]string{"GET blob"}, len(layers)+1), "GET manifest")
}

// TestResolveAtOrigin pulls through a mirror whose tag is older than that of the registry, and that claims the capability resolve.
func TestResolveAtOrigin(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	head, manifest := []string{"HEAD manifest"}, []string{"GET manifest"}

	// Without the rule, the tag of the mirror decides, as in containerd.
	app := m.push("hosts/app")
	if got := m.MustPull(m.Reg.Ref("hosts/app:v1"), ""); got != app.stale {
		t.Errorf("resolve_at = \"hosts\": pulled %s, want %s", got, app.stale)
	}
	m.want("resolve_at = \"hosts\"", nil, slices.Concat(head, pulls(t)))
	m.MustRemove(app.stale, "")
	m.Collect()

	m.push("origin/app")
	ref := m.Reg.Ref("origin/app:v1")
	m.WantOperator(0, []string{"resolve", ref}, "resolve_at origin", "from "+m.Reg.Host(), "MISSING")
	m.want("imagepin resolve", head, nil)
	if got := m.MustPull(ref, ""); got != app.id {
		t.Errorf("resolve_at = \"origin\": pulled %s, want %s", got, app.id)
	}
	m.want("resolve_at = \"origin\"", head, pulls(t))
	m.WantRun("", ref, testkit.Line(images.Options{Version: "new"}, images.HostPlatform()))
	m.want("a container", nil, nil)
	m.WantOperator(0, []string{"inspect", ref}, "resolve_at origin", "from "+m.Reg.Host())

	m.WantOperator(0, []string{"diff", ref}, images.HostPlatform()+": same")
	m.want("imagepin diff", head, nil)

	// A pin does not move to the digest of the mirror, and has no drift.
	m.push("node/app")
	pinned := m.Reg.Ref("node/app:v1")
	m.MustPull(pinned, "")
	m.want("a pull that pins", head, manifest)
	m.WantOperator(0, []string{"refresh", pinned}, "unchanged")
	m.want("refresh", head, nil)
	if p := m.Pins(pinned)["node"]; p == nil || p.Drift != nil {
		t.Errorf("the pin is %v, want no drift", p)
	}

	// What the mirror does not have comes from the origin.
	testkit.Push(t, m.Reg, "origin/other:v1", testkit.App(t, images.Options{Version: "new"}))
	m.Reg.Reset()
	m.MustPull(m.Reg.Ref("origin/other:v1"), "")
	m.want("not on the mirror", slices.Concat(head, manifest), manifest)
}

// TestOriginAway pulls while the origin is away. A pull is decided as with a registry that is away. The mirror is not asked for
// tags.
func TestOriginAway(t *testing.T) {
	t.Parallel()
	m := newMirrored(t)
	app := m.push("origin/app")
	m.push("always/app")
	m.push("node/app")
	for _, repo := range []string{"origin/app", "always/app", "node/app"} {
		m.MustPull(m.Reg.Ref(repo+":v1"), "")
	}
	absent := m.push("origin/absent")
	m.Reg.Down()
	m.mirror.Reset()

	for _, repo := range []string{"origin/app", "node/app"} {
		if got := m.MustPull(m.Reg.Ref(repo+":v1"), ""); got != app.id {
			t.Errorf("%s: pulled %s, want that of the node, %s", repo, got, app.id)
		}
	}
	m.want("default, on the node", nil, nil)
	m.WantOperator(0, []string{"resolve", m.Reg.Ref("origin/app:v1")}, "the registry is unavailable, and the image is on the node", "connection refused")
	for _, ref := range []string{m.Reg.Ref("always/app:v1"), m.Reg.Ref("origin/absent:v1")} {
		_, err := m.Pull(m.Ctx, ref, "")
		testkit.ManifestUnavailable.Check(t, err, ref, testkit.TargetOf(""))
	}
	m.WantOperator(1, []string{"refresh", m.Reg.Ref("node/app:v1")}, "connection refused")
	m.want("a tag", nil, nil)

	// The mirror still has the content by digest.
	if got := m.MustPull(m.Reg.Ref("origin/absent@"+absent.digest), ""); got != absent.id {
		t.Errorf("by digest: pulled %s, want %s", got, absent.id)
	}
	m.want("by digest", nil, []string{"HEAD manifest", "GET manifest"})
}
