package security

import (
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestStrangerHasToServeWhatItNames pulls a private image that is on the node through another registry that knows its
// digests. The pull fails and changes nothing unless that registry serves the index, the manifest and the
// configuration. If it serves them, each is fetched once, layers are not fetched, and another pull fetches nothing.
func TestStrangerHasToServeWhatItNames(t *testing.T) {
	t.Parallel()
	private := testkit.Registry(t)
	private.SetAuth(&registry.Auth{Users: map[string]registry.User{"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}}}})
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules, Handlers: []node.Handler{
		{Name: "native", Snapshotter: "native"}, {Name: "foreign", Platform: testkit.Foreign},
	}})
	ctx := testkit.Context(t)
	notFound := func(conditions ...func(registry.Request) bool) func(registry.Request) *registry.Fault {
		return registry.FaultIf(registry.Fault{Status: http.StatusNotFound}, append(conditions, registry.Is(http.MethodGet, ""))...)
	}
	is := func(kind registry.Kind, ref func() string) func(registry.Request) bool {
		return func(q registry.Request) bool { return q.Kind == kind && q.Reference == ref() }
	}
	host, other := images.Options{Version: "private"}, images.Options{Version: "private", Platform: testkit.Foreign}
	single := images.Options{Version: "single"}
	theirs := map[string]remote.Taggable{"index": testkit.AppIndex(t, host, images.HostPlatform(), testkit.Foreign), "single": testkit.App(t, single)}
	for kind, content := range theirs {
		testkit.Push(t, private, kind+":v1", content)
		for _, handler := range []string{"", "foreign"} {
			if handler == "foreign" && kind == "single" {
				continue
			}
			if _, err := n.PullWith(ctx, private.Ref(kind+":v1"), node.PullOptions{Auth: testkit.AsAlice(), Handler: handler}); err != nil {
				t.Fatal(err)
			}
		}
	}
	opts := map[string]map[string]images.Options{"index": {"": host, "foreign": other}, "single": {"": single}}
	for kind, handlers := range opts {
		for handler, o := range handlers {
			img := testkit.App(t, o)
			name := kind + " for handler " + handler
			config := func() string { return must(t, img.ConfigName).String() }
			manifest := func() string { return must(t, img.Digest).String() }
			faults := map[string]func(registry.Request) *registry.Fault{
				"serves nothing":       notFound(),
				"serves no blobs":      notFound(is(registry.Blob, config)),
				"serves no manifest":   notFound(is(registry.Manifest, manifest)),
				"serves other content": registry.FaultIf(registry.Fault{Corrupt: true, After: 10}, registry.Is(http.MethodGet, registry.Blob)),
			}
			for what, fault := range faults {
				t.Run(name+" "+what, func(t *testing.T) {
					stranger := testkit.Registry(t)
					root := testkit.Push(t, stranger, kind+":v1", theirs[kind])
					stranger.SetFault(fault)
					before := testkit.State(t, n)
					for range 2 {
						for _, ref := range []string{stranger.Ref(kind + ":v1"), stranger.Ref(kind + "@" + root.String())} {
							_, err := n.Pull(ctx, ref, handler)
							want := testkit.Failure{Name: "CannotPullImage", Code: codes.NotFound}
							if what == "serves other content" {
								want = testkit.Failure{Name: "ContentCorrupt", Code: codes.FailedPrecondition}
							}
							want.Check(t, err, ref, testkit.TargetOf(handler))
						}
					}
					if d := node.Diff(before, testkit.State(t, n)); d != "" {
						t.Errorf("the failed pulls changed the node's state:\n%s", d)
					}
				})
			}
			t.Run(name+" serves all", func(t *testing.T) {
				stranger := testkit.Registry(t)
				testkit.Push(t, stranger, kind+":v1", theirs[kind])
				pull := func(handler string, blobs, manifests int) {
					t.Helper()
					stranger.Reset()
					if _, err := n.Pull(ctx, stranger.Ref(kind+":v1"), handler); err != nil {
						t.Fatal(err)
					}
					if stranger.Count(registry.Is("GET", registry.Blob)) != blobs || stranger.Count(registry.Is("GET", registry.Manifest)) != manifests ||
						stranger.Count() != 1+blobs+manifests {
						t.Errorf("handler %q: got other requests than a HEAD, %d for blobs and %d for manifests:\n%s", handler, blobs, manifests, stranger.Dump())
					}
				}
				pull(handler, 1, map[string]int{"index": 2, "single": 1}[kind])
				pull(handler, 0, 0)
				if handler == "" {
					pull("native", 0, 0)
				}
			})
		}
	}
}

// TestStrangersManifestOfAPrivateConfiguration checks that a pull fails if a registry serves its own manifest for the
// configuration and layers of a private image, but not the configuration and layers.
func TestStrangersManifestOfAPrivateConfiguration(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	private, stranger := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true})
	testkit.Push(t, private, "app:v1", testkit.App(t, images.Options{}))
	if _, err := n.Pull(ctx, private.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
	own := testkit.App(t, images.Options{Annotations: map[string]string{"of": "the stranger"}})
	if must(t, own.ConfigName) != must(t, testkit.App(t, images.Options{}).ConfigName) {
		t.Fatal("the configurations differ")
	}
	testkit.Push(t, stranger, "app:v1", own)
	stranger.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusNotFound}, registry.Is(http.MethodGet, registry.Blob)))
	before := testkit.State(t, n)
	for range 3 {
		_, err := n.Pull(ctx, stranger.Ref("app:v1"), "")
		testkit.Failure{Name: "CannotPullImage", Code: codes.NotFound}.Check(t, err, stranger.Ref("app:v1"), testkit.TargetOf(""))
	}
	after := testkit.State(t, n)
	if len(after.Images) != len(before.Images) || len(after.Content) != len(before.Content) || len(after.Snapshots) != len(before.Snapshots) {
		t.Errorf("the failed pulls left something on the node:\n%s", node.Diff(before, after))
	}
	stranger.SetFault(nil)
	if _, err := n.Pull(ctx, stranger.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
}

// TestCopyInTheSameRegistry pulls an image that is on the node from another repository of its registry. The registry is asked for
// the manifest only. A manifest that no image on the node has does not give the configuration that it names, also if an earlier
// pull has fetched it.
func TestCopyInTheSameRegistry(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	img := testkit.App(t, images.Options{})
	own := testkit.App(t, images.Options{Annotations: map[string]string{"of": "the tenant"}})
	for name, content := range map[string]remote.Taggable{"app:v1": img, "copy:v1": img, "tenant:v1": own} {
		testkit.Push(t, reg, name, content)
	}
	if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
	reg.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusNotFound}, registry.Is(http.MethodGet, registry.Blob)))
	for range 2 {
		_, err := n.Pull(ctx, reg.Ref("tenant:v1"), "")
		testkit.Failure{Name: "CannotPullImage", Code: codes.NotFound}.Check(t, err, reg.Ref("tenant:v1"), testkit.TargetOf(""))
	}
	reg.Reset()
	if _, err := n.Pull(ctx, reg.Ref("copy:v1"), ""); err != nil {
		t.Fatal(err)
	}
	if reg.Count(registry.Is("HEAD", registry.Manifest)) != 1 || reg.Count(registry.Is("GET", registry.Manifest)) != 1 || reg.Count() != 2 {
		t.Errorf("got other requests than a HEAD and a GET of the manifest:\n%s", reg.Dump())
	}
	if _, err := n.Pull(ctx, reg.Ref("tenant:v1"), ""); err == nil {
		t.Error("the tenant's image was pulled without its configuration")
	}
}

func must[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}
