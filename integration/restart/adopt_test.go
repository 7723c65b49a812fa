package restart

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnpackedLater has ctr make a record first and unpack it for a second snapshotter after, as it always does: the image is there for
// that one too, within a second and after a restart; also where it is unpacked while imagepin does not run. The registry is not asked.
func TestUnpackedLater(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	r.MustRemovePod(r.MustPod(testkit.Second))
	opts := images.Options{}
	there := func(ref string) {
		t.Helper()
		for _, h := range []string{"runc", testkit.Second} {
			testkit.EventuallyIn(t, time.Second, ref+" is there for "+h, func(ctx context.Context) (bool, error) {
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
	there(tag)
	r.WantRun(testkit.Second, tag, opts.Line(0))
	r.KillAndRestart(nil)
	there(tag)

	// Adopted for the default handler first, and unpacked for the other while nobody looks.
	later := images.Options{Version: "later"}
	ref, _ := r.Push("app:later", later, images.HostPlatform(), testkit.Foreign)
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", ref); err != nil {
		t.Fatal(err)
	}
	r.Eventually("it is adopted", func() bool { return r.MustStatus(ref, "runc") != nil })
	if img := r.MustStatus(ref, testkit.Second); img != nil {
		t.Errorf("it is there where it is not unpacked: %v", img)
	}
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
	pull(ref)
	r.Reg.Down()
	r.KillAndRestart(func(o *node.Options) { o.Binary = node.Ours })
	there(ref)
	r.WantRun(testkit.Second, ref, later.Line(0))
	r.WantNoRequests("running what ctr had unpacked")
}

// TestEndlessUser pulls, and has adopted, images whose user no label has room for: they are there like any other, with that user, over a restart too.
func TestEndlessUser(t *testing.T) {
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
					t.Errorf("for %s the user of %s is %.20q", h, ref, got)
				}
			}
		}
		r.KillAndRestart(nil)
	}
	r.WantNoRequests("a restart")
	if out, ok := r.Command("check"); !ok {
		t.Errorf("a check finds:\n%s", out)
	}
}
