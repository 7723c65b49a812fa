package pull

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestGuestPullUnpacksNothing pulls for a handler with guest_pull that has a snapshotter of its own. No layer is fetched or unpacked for
// it, pods run, and other handlers are not affected, also after containerd was killed.
func TestGuestPullUnpacksNothing(t *testing.T) {
	t.Parallel()
	for _, snapshotter := range testkit.SecondSnapshotters {
		t.Run(snapshotter, func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, testkit.WithSecond(snapshotter, node.Options{Extra: testkit.GuestHandler}))
			opts := images.Options{}
			tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
			dir, pod := guestFiles(r, "overlayfs"), r.MustPod(testkit.Second)
			layers := len(layerBlobs(r.MustState()))
			r.Reg.Reset()
			id := r.MustPull(tag, testkit.Second)
			r.WantRequests("the pull for guests", "HEAD manifest", "GET manifest", "GET manifest", "GET blob")
			wantGuestSnapshots(r, snapshotter, 2)
			if kept := layerBlobs(r.MustState()); len(kept) != layers {
				t.Errorf("got layers %q in the content store, want %d", kept, layers)
			}
			r.WantOperator(0, []string{"status"}, "second (guest_pull)")
			r.WantOperator(0, []string{"resolve", tag, "--handler", "second"}, "Guest pulls:  "+digest, "Missing:      none")
			if out := r.WantOperator(0, []string{"resolve", tag}); strings.Contains(out, "Guest pulls") {
				t.Errorf("resolve for the default handler:\n%s", out)
			}

			r.WantRun("", tag, opts.Line(0)) // with the layers
			for _, restart := range []bool{false, true} {
				if restart {
					r.Collect()
					r.KillAndRestart(nil)
				}
				r.Reg.Reset()
				if img := r.MustStatus(tag, testkit.Second); img.GetId() != id {
					t.Errorf("ImageStatus for guests: got %v", img)
				}
				wantGuestRuns(r, pod, dir, node.ContainerOptions{Image: id, UserImage: tag}, 0)
				r.WantNoRequests("a pod of guests")
				wantGuestSnapshots(r, snapshotter, 2)
				if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
					t.Errorf("a deep check finds %v", found)
				}
				r.WantOperator(0, []string{"status"})
			}

			volume := &cri.Mount{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: tag}}
			_, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id, UserImage: tag, Mounts: []*cri.Mount{volume}})
			testkit.WantCode(t, err, codes.FailedPrecondition, "ImageNotReady", "image volume", "handler second")
		})
	}
}

// TestGuestPullUsers creates containers of images without files on the node. The node cannot look up the name of a user, except root.
func TestGuestPullUsers(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, testkit.WithSecond("native", node.Options{Extra: testkit.GuestHandler}))
	dir, pod := guestFiles(r, "overlayfs"), r.MustPod(testkit.Second)
	number := int64(1000)
	for _, c := range []struct {
		user string
		opts node.ContainerOptions
		want int // -1 if it fails
	}{
		{user: "root", want: 0},
		{user: "root:root", want: 0},
		{user: "app", opts: node.ContainerOptions{RunAsUsername: "root"}, want: 0},
		{user: "1000", want: 1000},
		{user: "app", opts: node.ContainerOptions{RunAsUser: &number}, want: 1000},
		{user: "app", opts: node.ContainerOptions{RunAsUsername: "1000"}, want: 1000},
		{user: "1000:root", want: 1000},
		{user: "1000:app", want: -1},
		{user: "1000", opts: node.ContainerOptions{RunAsUser: &number, RunAsUsername: "app"}, want: -1},
		{user: "app", want: -1},
		{user: "", opts: node.ContainerOptions{RunAsUsername: "app"}, want: -1},
	} {
		tag, _ := r.Push("users:v1", images.Options{User: c.user}, images.HostPlatform())
		c.opts.Image, c.opts.UserImage = r.MustPull(tag, testkit.Second), tag
		if c.want < 0 {
			_, err := r.CreateContainer(r.Ctx, pod, c.opts)
			testkit.WantCode(t, err, codes.FailedPrecondition, "ImageNotReady", `"app" in the image`, "handler second", "runAsUser")
			continue
		}
		wantGuestRuns(r, pod, dir, c.opts, c.want)
	}
}

// TestGuestPullIsTakenBack removes guest_pull from a handler, and sets it again. Images that were pulled for guests are not ready until
// they are unpacked, in the background or by a pull, also if a container stands on their snapshots.
func TestGuestPullIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, test := range []string{"by a repair", "by a pull", "with a container"} {
		t.Run(test, func(t *testing.T) {
			t.Parallel()
			// The default handler has the native snapshotter here: files on overlayfs can be replaced below a container.
			r := testkit.NewRig(t, testkit.WithSecond("overlayfs", node.Options{Snapshotter: "native", Extra: testkit.GuestHandler}))
			opts := images.Options{}
			tag, _ := r.Push("app:v1", opts, images.HostPlatform())
			id := r.MustPull(tag, testkit.Second)
			var guest *node.Container
			if test == "with a container" {
				guest = wantGuestRuns(r, r.MustPod(testkit.Second), guestFiles(r, "native"), node.ContainerOptions{Image: id, UserImage: tag}, 0)
			}
			if test == "by a pull" {
				r.Reg.Down() // so that the repair in the background fails
			}
			r.KillAndRestart(func(o *node.Options) { o.Extra = strings.Replace(o.Extra, "true", "false", 1) })
			if test == "by a pull" {
				if img := r.MustStatus(tag, testkit.Second); img != nil {
					t.Errorf("ImageStatus for a handler without guests: got %v", img)
				}
				r.WantOperator(1, []string{"status"})
				if err := r.Reg.Up(); err != nil {
					t.Fatal(err)
				}
				r.MustPull(tag, testkit.Second)
			}
			if guest != nil { // it runs, so the files below it stay as they are
				_, err := r.Pull(r.Ctx, tag, testkit.Second)
				testkit.WantCode(t, err, codes.FailedPrecondition, "SnapshotInUse", guest.Config.GetMetadata().GetName())
				if _, err := r.Runtime().StopContainer(r.Ctx, &cri.StopContainerRequest{ContainerId: guest.ID}); err != nil {
					t.Fatal(err)
				}
			}
			r.Eventually("the image is unpacked", func() bool { return r.MustStatus(tag, testkit.Second) != nil })
			r.WantRun(testkit.Second, tag, opts.Line(0))
			wantGuestSnapshots(r, "overlayfs", 0)
			if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
			r.WantOperator(0, []string{"status"})

			r.KillAndRestart(func(o *node.Options) { o.Extra = testkit.GuestHandler })
			r.WantRun(testkit.Second, tag, opts.Line(0)) // its files stay
			other, _ := r.Push("other:v1", opts, images.HostPlatform())
			r.MustPull(other, testkit.Second)
			wantGuestSnapshots(r, "overlayfs", 0) // of the same layers
		})
	}
}

// TestGuestPullUninstall uninstalls imagepin from a node with images for guests, and starts it again without guest_pull. The images are
// unpacked before they run.
func TestGuestPullUninstall(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, testkit.WithSecond("native", node.Options{Extra: testkit.GuestHandler}))
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	r.MustPull(tag, testkit.Second)
	r.WantOperator(0, []string{"uninstall", "--yes"})
	wantGuestSnapshots(r, "native", 2)
	r.KillAndRestart(func(o *node.Options) { o.Extra = "" })
	r.MustPull(tag, testkit.Second)
	r.WantRun(testkit.Second, tag, opts.Line(0))
	wantGuestSnapshots(r, "native", 0)
}

// TestGuestPullHandlerIsRemoved removes the handler with guest_pull, and adds it again, with guest_pull and then without. Nothing runs from
// its snapshotter meanwhile, so the images for its guests are as they should be.
func TestGuestPullHandlerIsRemoved(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, testkit.WithSecond("native", node.Options{Extra: testkit.GuestHandler}))
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	r.MustPull(tag, testkit.Second)
	removed := func(o *node.Options) { o.Handlers, o.Extra = nil, "" }
	added := func(extra string) func(*node.Options) {
		return func(o *node.Options) { o.Handlers, o.Extra = testkit.OnNative, extra }
	}
	for _, change := range []func(*node.Options){removed, added(testkit.GuestHandler)} {
		r.Reg.Reset()
		r.KillAndRestart(change)
		if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
			t.Errorf("a deep check finds %v", found)
		}
		r.WantOperator(0, []string{"status"})
		wantGuestSnapshots(r, "native", 2)
		r.WantNoRequests("a restart")
	}
	if r.MustStatus(tag, testkit.Second) == nil {
		t.Error("the image is not ready for the handler that was added again")
	}
	r.KillAndRestart(removed)
	r.KillAndRestart(added(""))
	r.MustPull(tag, testkit.Second)
	r.WantRun(testkit.Second, tag, opts.Line(0))
	wantGuestSnapshots(r, "native", 0)
}

// TestGuestPullSandboxImage pulls an image for guests that is the sandbox image, or becomes it, or has its layers. The sandboxes have files.
func TestGuestPullSandboxImage(t *testing.T) {
	t.Parallel()
	for _, changed := range []bool{false, true} {
		t.Run(map[bool]string{false: "same layers", true: "changed"}[changed], func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, testkit.WithSecond("native", node.Options{Extra: testkit.GuestHandler}))
			index, err := images.PauseIndex(r.Ctx)
			if err != nil {
				t.Fatal(err)
			}
			mirror, _ := r.Pushed("mirror/pause:v1", testkit.Push(t, r.Reg, "mirror/pause:v1", index))
			r.MustPull(mirror, testkit.Second)
			wantGuestSnapshots(r, "native", 1)
			if changed {
				r.KillAndRestart(func(o *node.Options) { o.SandboxImage = mirror })
			}
			r.MustPod(testkit.Second)
			r.Eventually("the image that guests pull is ready", func() bool { return r.MustStatus(mirror, testkit.Second) != nil })
			wantGuestSnapshots(r, "native", 0)
			if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
			r.WantOperator(0, []string{"status"})
		})
	}
}

// wantGuestSnapshots checks that a snapshotter has n committed snapshots without files, which have the label, and that no other one has it.
func wantGuestSnapshots(r *testkit.Rig, snapshotter string, n int) {
	r.T.Helper()
	found := 0
	for key, info := range r.MustState().Snapshots {
		if info.Labels["io.imagepin.guest-pull"] == "" {
			continue
		}
		found++
		if !strings.HasPrefix(key, node.Namespace+"/"+snapshotter+"/") {
			r.T.Errorf("snapshot %s has the label", key)
		}
	}
	if found != n {
		r.T.Errorf("got %d snapshots without files, want %d", found, n)
	}
}

// guestFiles pulls an image for the default handler, and returns the directory with its files.
func guestFiles(r *testkit.Rig, snapshotter string) (dir string) {
	r.T.Helper()
	tag, _ := r.Push("files:v1", images.Options{SingleLayer: true, Version: "guest"}, images.HostPlatform())
	r.MustPull(tag, "")
	return r.DirectoryIn(tag, snapshotter)
}

// wantGuestRuns runs a container of a handler with guests, as a user. Its program is mounted, as the files of a guest are not on the node.
func wantGuestRuns(r *testkit.Rig, pod *node.Pod, dir string, opts node.ContainerOptions, uid int) *node.Container {
	r.T.Helper()
	opts.Mounts = []*cri.Mount{{ContainerPath: "/guest", HostPath: dir, Readonly: true}}
	opts.Command = []string{"/guest/app"}
	c, line, err := r.RunContainer(r.Ctx, pod, opts)
	if want := fmt.Sprintf(" rootfs=missing uid=%d", uid); err != nil || !strings.HasSuffix(line, want) {
		r.T.Errorf("a container of guests with %+v: got %q, %v, want %q", opts, line, err, want)
	}
	return c
}
