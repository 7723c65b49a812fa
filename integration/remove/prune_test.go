package remove

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// want fails the test unless a command prints all words and has an exit code.
func want(r *testkit.Rig, code int, args string, words ...string) {
	r.T.Helper()
	out, got := r.Operator(strings.Fields(args)...)
	if got != code {
		r.T.Errorf("imagepin %s: exit code %d, want %d\n%s", args, got, code, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			r.T.Errorf("imagepin %s does not print %q:\n%s", args, w, out)
		}
	}
}

// TestRemoveCommand removes images with "imagepin rm": not one in use, for one handler, with all references, by the short
// ID, and with a pin that stays.
func TestRemoveCommand(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative, Extra: testkit.ConsistencyRules})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	pinned := r.Reg.Ref("node/app:v1")
	r.Version("node/app:v1", "v2")
	r.MustPull(ref, "")
	r.MustPull(ref, testkit.Second)
	id := r.MustPull(pinned, "")
	pod := r.MustPod("")
	c, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Name: "web", Image: ref})
	if err != nil {
		t.Fatal(err)
	}

	before := r.MustState()
	want(r, 1, "rm "+ref, "ImageInUse", ref, "container web of pod default/")
	want(r, 1, "rm "+ref+" --handler runc", "ImageInUse")
	r.WantState("after refused removals", before)
	want(r, 0, "rm "+ref+" --handler "+testkit.Second, "Removed "+ref+" for "+images.HostPlatform()+" on native")
	if r.MustStatus(ref, testkit.Second) != nil || r.MustStatus(ref, "") == nil {
		t.Error("the image was not removed for its handler only")
	}
	if err := c.Remove(r.Ctx); err != nil {
		t.Fatal(err)
	}
	want(r, 0, "rm "+ref, "Removed "+ref+" for "+images.HostPlatform()+" on overlayfs")
	want(r, 0, "rm "+strings.TrimPrefix(id, "sha256:")[:12], "Removed "+pinned, pinned+" stays pinned to", "(scope node)")
	if len(r.Listed()) > 0 || len(r.Pins(pinned)) != 1 {
		t.Errorf("got images %v and pins %v", r.Listed(), r.Pins(pinned))
	}
	want(r, 1, "rm "+ref, "UnknownImage")
	want(r, 1, "rm "+ref+" --handler sparc", "sparc")
}

// TestRemoveWithoutName checks that an empty name, as of a variable that is not set, does not remove the only image of a node.
func TestRemoveWithoutName(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(ref, "")
	r.WantOperator(1, []string{"rm", ""}, "InvalidReference")
	testkit.WantCode(t, r.RemoveImage(r.Ctx, "", ""), codes.InvalidArgument, "InvalidReference")
	if r.MustStatus(ref, "") == nil {
		t.Error("the image was removed")
	}
}

// TestPrune checks what "imagepin prune" keeps and removes.
func TestPrune(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative, Extra: testkit.ConsistencyRules})
	pull := func(name, version string, handlers ...string) string {
		t.Helper()
		r.Version(name, version)
		for _, h := range handlers {
			r.MustPull(r.Reg.Ref(name), h)
		}
		return r.Reg.Ref(name)
	}
	used := pull("used:v1", "used", "", testkit.Second)
	unused := pull("unused:v1", "unused", "")
	pinned := pull("node/app:v1", "pinned", "")
	kept := pull("kept/app:v1", "kept", "")
	pod := r.MustPod("")
	if _, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: used}); err != nil {
		t.Fatal(err)
	}
	all := []string{used, unused, pinned, kept}
	present := func(when string, refs ...string) {
		t.Helper()
		for _, ref := range all {
			is, should := r.MustStatus(ref, "") != nil, false
			for _, p := range refs {
				should = should || p == ref
			}
			if is != should {
				t.Errorf("%s: %s is present: %t", when, ref, is)
			}
		}
		if r.MustStatus(r.Options().SandboxImage, "") == nil {
			t.Errorf("%s: the sandbox image is gone", when)
		}
	}

	want(r, 0, "prune --yes", "Nothing to prune.") // all images are young
	before := r.MustState()
	want(r, 1, "prune --older-than 0s", "Would remove "+unused, "Would remove "+used+" for "+images.HostPlatform()+" on native", "add --yes")
	r.WantState("after a dry run", before)
	want(r, 1, "prune --older-than=-1s --yes", "negative")
	want(r, 0, "prune --older-than 0s --yes --handler "+testkit.Second, "Removed 1 image")
	present("prune of one handler", all...)
	want(r, 0, "prune --older-than 0s --yes", "Removed "+unused, "Removed 1 image")
	present("prune", used, pinned, kept)
	want(r, 0, "prune --older-than 0s --yes --pinned", "Removed "+pinned)
	present("prune of pinned images", used, kept)
	want(r, 0, "prune --older-than 0s --yes --pinned", "Nothing to prune.")
	want(r, 0, "check")
}

// TestPruneWithoutHandler checks that a container whose runtime handler is no longer configured keeps its image.
func TestPruneWithoutHandler(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(ref, testkit.Second)
	r.MustPull(ref, "")
	pod := r.MustPod(testkit.Second)
	if _, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: ref}); err != nil {
		t.Fatal(err)
	}
	r.KillAndRestart(func(o *node.Options) { o.Handlers = nil })
	want(r, 0, "prune --older-than 0s --yes", "Nothing to prune.")
	want(r, 1, "rm "+ref, "ImageInUse")
	if r.MustStatus(ref, "") == nil {
		t.Error("the image of the container is gone")
	}
}

// TestPruneDuringPods prunes all the time while containers are created. A prune must not remove the image of a container,
// also of one that was created after the prune had listed what is used.
func TestPruneDuringPods(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	pod := r.MustPod("")
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-stopped }()
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if out, code := r.Operator("prune", "--yes", "--older-than", "0s"); code != 0 {
					t.Errorf("prune: exit code %d\n%s", code, out)
					return
				}
			}
		}
	}()
	for created := 0; created < 20; {
		r.MustPull(ref, "")
		c, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: ref})
		if status.Code(err) == codes.NotFound {
			continue // pruned before there was a container: kubelet pulls again
		}
		if err != nil {
			t.Fatalf("creating a container: %v", err)
		}
		created++
		for range 3 {
			if r.MustStatus(ref, "") == nil {
				t.Fatal("the image of a container was pruned")
			}
		}
		if err := c.Remove(r.Ctx); err != nil {
			t.Fatal(err)
		}
	}
}
