package integration

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
	r := newRig(t, node.Options{Handlers: onNative})
	r.removePod(r.pod(second))
	opts := images.Options{}
	there := func(ref string) {
		t.Helper()
		for _, h := range []string{"runc", second} {
			testkit.EventuallyIn(t, time.Second, ref+" is there for "+h, func(ctx context.Context) (bool, error) {
				img, err := r.ImageStatus(ctx, ref, h)
				return img != nil, err
			})
		}
	}
	pull := func(ref string) {
		t.Helper()
		if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", "--snapshotter", "native", ref); err != nil {
			t.Fatal(err)
		}
		r.reg.Reset()
	}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
	pull(tag)
	there(tag)
	r.wantRun(second, tag, opts.Line(0))
	r.crash(nil)
	there(tag)

	// Adopted for the default handler first, and unpacked for the other while nobody looks.
	later := images.Options{Version: "later"}
	ref, _ := r.push("app:later", later, images.HostPlatform(), foreign)
	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", ref); err != nil {
		t.Fatal(err)
	}
	r.eventually("it is adopted", func() bool { return r.status(ref, "runc") != nil })
	if img := r.status(ref, second); img != nil {
		t.Errorf("it is there where it is not unpacked: %v", img)
	}
	r.crash(func(o *node.Options) { o.Binary = node.Stock })
	pull(ref)
	r.reg.Down()
	r.crash(func(o *node.Options) { o.Binary = node.Ours })
	there(ref)
	r.wantRun(second, ref, later.Line(0))
	r.offline("running what ctr had unpacked")
}

// TestEndlessUser pulls, and has adopted, images whose user no label has room for: they are there like any other, with that user, over a restart too.
func TestEndlessUser(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	opts := images.Options{User: strings.Repeat("u", 5000)}
	pulled, _ := r.push("pulled:v1", opts, images.HostPlatform(), foreign)
	opts.Version = "adopted"
	adopted, _ := r.push("adopted:v1", opts, images.HostPlatform())
	r.pull(pulled, "")
	r.pull(pulled, second)
	if _, err := r.Ctr(r.ctx, "images", "pull", "--local", "--plain-http", adopted); err != nil {
		t.Fatal(err)
	}
	noticed(t, r.Node, adopted)
	r.reg.Reset()
	for range 2 {
		for ref, handlers := range map[string][]string{pulled: {"runc", second}, adopted: {"runc"}} {
			for _, h := range handlers {
				if got := r.status(ref, h).GetUsername(); got != opts.User {
					t.Errorf("for %s the user of %s is %.20q", h, ref, got)
				}
			}
		}
		r.crash(nil)
	}
	r.offline("a restart")
	if out, ok := r.imagepin("check"); !ok {
		t.Errorf("a check finds:\n%s", out)
	}
}
