package restart

import (
	"context"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnpackedLater checks that an image is available for a snapshotter that ctr unpacks it in after creating its
// record: while imagepin runs, after a restart, and if ctr unpacks it while imagepin does not run. imagepin sends no
// registry request.
func TestUnpackedLater(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	r.MustRemovePod(r.MustPod(testkit.Second))
	opts := images.Options{}
	wantPresent := func(ref string) {
		t.Helper()
		for _, h := range []string{"runc", testkit.Second} {
			testkit.Eventually(t, ref+" is available for "+h, func(ctx context.Context) (bool, error) {
				img, err := r.ImageStatus(ctx, ref, h)
				return img != nil, err
			})
		}
	}
	pull := func(ref string) {
		t.Helper()
		if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", "--snapshotter", "native", ref); err != nil {
			t.Fatal(err)
		}
		r.Reg.Reset()
	}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	pull(tag)
	wantPresent(tag)
	r.WantRun(testkit.Second, tag, opts.Line(0))
	r.KillAndRestart(nil)
	wantPresent(tag)

	// Adopt the image for the default handler, and unpack it for the other one while imagepin does not run.
	later := images.Options{Version: "later"}
	ref, _ := r.Push("app:later", later, images.HostPlatform(), testkit.Foreign)
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", ref); err != nil {
		t.Fatal(err)
	}
	r.Eventually("the image is adopted", func() bool { return r.MustStatus(ref, "runc") != nil })
	if img := r.MustStatus(ref, testkit.Second); img != nil {
		t.Errorf("ImageStatus returned an image for a handler that it is not unpacked for: %v", img)
	}
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	pull(ref)
	r.Reg.Down()
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Ours })
	wantPresent(ref)
	r.WantRun(testkit.Second, ref, later.Line(0))
	r.WantNoRequests("running an image that ctr unpacked")
}

// TestLongUser checks that pulled and adopted images are available with their user, also after a restart, if the user
// does not fit into a label.
func TestLongUser(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	opts := images.Options{User: strings.Repeat("u", 5000)}
	pulled, _ := r.Push("pulled:v1", opts, images.HostPlatform(), testkit.Foreign)
	opts.Version = "adopted"
	adopted, _ := r.Push("adopted:v1", opts, images.HostPlatform())
	r.MustPull(pulled, "")
	r.MustPull(pulled, testkit.Second)
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", adopted); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, adopted)
	r.Reg.Reset()
	for range 2 {
		for ref, handlers := range map[string][]string{pulled: {"runc", testkit.Second}, adopted: {"runc"}} {
			for _, h := range handlers {
				if got := r.MustStatus(ref, h).GetUsername(); got != opts.User {
					t.Errorf("handler %s: ImageStatus %s returned a wrong user: %.20q", h, ref, got)
				}
			}
		}
		r.KillAndRestart(nil)
	}
	r.WantNoRequests("a restart")
	if out, ok := r.Command("check"); !ok {
		t.Errorf("the check failed:\n%s", out)
	}
}
