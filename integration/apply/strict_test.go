package apply

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const strictRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/strict/**"]
locked = "strict"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/warn/**"]
locked = "warn"
`

// TestStrict checks that a node runs only what the lock names where a rule says so: by tag, by the digest of the index, and by
// that of the manifest. The sandbox image is not an image of a pod.
func TestStrict(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: strictRules})
	ref, other, warn := r.Reg.Ref("strict/app:v1"), r.Reg.Ref("strict/other:v1"), r.Reg.Ref("warn/app:v1")
	locked := r.Version("strict/app:v1", "locked")
	r.Version("strict/other:v1", "other")
	r.Version("warn/app:v1", "warned")
	_, unnamed := r.Push("strict/app:v2", images.Options{Version: "unnamed"}, images.HostPlatform())
	refuse := func(k node.KubeletPod) {
		t.Helper()
		if _, err := r.RunAsKubelet(r.Ctx, k); err == nil {
			t.Errorf("a pod of %s runs", k.Image)
		} else {
			testkit.WantCode(t, err, 7, "NotInLock", k.Image, "imagepin apply")
		}
	}
	refuse(node.KubeletPod{Image: ref}) // no lock yet
	r.WantVersion(node.KubeletPod{Image: warn}, "warned")
	imagepinWants(r, 0, []string{"apply", writeLock(r, "lock.yaml", map[string]string{ref: locked})})
	r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "locked")
	r.WantVersion(node.KubeletPod{Image: r.Reg.Ref("strict/app@" + locked)}, "locked")
	refuse(node.KubeletPod{Image: other})
	refuse(node.KubeletPod{Image: other, Always: true})
	refuse(node.KubeletPod{Image: unnamed})
	// Another tool has it on the node already.
	if out, err := r.Ctr(r.Ctx, "-n", "k8s.io", "images", "pull", "--plain-http", other); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testkit.WaitForImage(t, r.Node, other)
	refuse(node.KubeletPod{Image: other})
	imagepinWants(r, 1, []string{"pull", other}, "NotInLock")
}

// TestStrictIsNotBypassed tries to run images that the lock does not name in all ways in which a pod, or a user of the CRI, can
// name an image.
func TestStrictIsNotBypassed(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OtherTargets, Extra: `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/strict/**"]
locked = "strict"
`})
	ref, other := r.Reg.Ref("strict/app:v1"), r.Reg.Ref("strict/other:v1")
	locked := r.Version("strict/app:v1", "locked")
	_, unnamed := r.Push("strict/app:v2", images.Options{Version: "unnamed"}, images.HostPlatform(), "linux/arm64")
	r.Version("strict/other:v1", "other")
	r.Version("strict/same:v1", "locked") // the content of the locked image, in another repository
	sameDigest := r.Reg.Ref("strict/same@" + locked)

	// All are on the node before the lock, from another tool, and by tag, digest and image ID.
	var ids []string
	for _, name := range []string{r.Reg.Ref("strict/app:v2"), other, r.Reg.Ref("strict/same:v1"), unnamed} {
		if out, err := r.Ctr(r.Ctx, "images", "pull", "--plain-http", name); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		ids = append(ids, testkit.WaitForImage(t, r.Node, name))
	}
	imagepinWants(r, 0, []string{"apply", writeLock(r, "lock.yaml", map[string]string{ref: locked})})
	lockedID := r.MustStatus(ref, "").GetId()
	if ids[2] != lockedID {
		t.Fatalf("the image IDs %s and %s differ", ids[2], lockedID)
	}

	pods := map[string]*node.Pod{}
	for _, handler := range []string{"", "native", "arm"} {
		pods[handler] = r.MustPod(handler)
	}
	create := func(o node.ContainerOptions, handler string) (string, error) {
		_, line, err := r.RunContainer(r.Ctx, pods[handler], o)
		return line, err
	}
	names := []string{
		r.Reg.Ref("strict/app:v2"), unnamed, ids[0], ids[0][:19], ids[0][7:], ids[0][7:19], // another tag of a locked repository
		other, ids[1], ids[1][7:20], // another repository
		r.Reg.Ref("strict/same:v1"), sameDigest, // the content of the locked image
		r.Reg.Ref("strict/app:v1@" + testkit.DigestIn(unnamed)), r.Reg.Ref("strict/none:v1"), "sha256:" + ids[0][7:10],
	}
	for _, handler := range []string{"", "native", "arm"} {
		for _, name := range names {
			for _, user := range []string{"", name, "docker.io/library/free:v1", ids[0]} {
				line, err := create(node.ContainerOptions{Image: name, UserImage: user}, handler)
				if err == nil {
					t.Errorf("handler %q: a container of %s (named %q) runs and prints %q", handler, name, user, line)
				} else if !strings.Contains(err.Error(), "NotInLock") {
					t.Errorf("handler %q: %s (named %q): %v, want NotInLock", handler, name, user, err)
				}
			}
		}
		// kubelet names the ID of one image and the reference of another one.
		if line, err := create(node.ContainerOptions{Image: lockedID, UserImage: other}, handler); err == nil && !strings.Contains(line, "version=locked") {
			t.Errorf("handler %q: the ID of the locked image and the reference of another one: %q", handler, line)
		}
		if line, err := create(node.ContainerOptions{Image: ids[0], UserImage: ref}, handler); err == nil && !strings.Contains(line, "version=locked") {
			t.Errorf("handler %q: the ID of another image and the locked reference: %q", handler, line)
		}
		line, err := create(node.ContainerOptions{Image: lockedID, UserImage: ref}, handler)
		if err != nil || !strings.Contains(line, "version=locked") {
			t.Errorf("handler %q: the locked image: %q, %v", handler, line, err)
		}
	}
	// An image volume.
	for _, name := range []string{other, ids[1], unnamed} {
		_, err := create(node.ContainerOptions{Image: lockedID, UserImage: ref, Mounts: []*cri.Mount{{
			ContainerPath: "/data", Readonly: true, Image: &cri.ImageSpec{Image: name, UserSpecifiedImage: name},
		}}}, "")
		testkit.WantCode(t, err, codes.PermissionDenied, "NotInLock")
	}
	// Pulls, also for another handler, and in another form.
	for _, name := range []string{other, unnamed, r.Reg.Ref("strict/app:v2"), sameDigest} {
		for _, handler := range []string{"", "native", "arm"} {
			_, err := r.Pull(r.Ctx, name, handler)
			testkit.WantCode(t, err, codes.PermissionDenied, "NotInLock")
		}
	}
	imagepinWants(r, 1, []string{"pull", other}, "NotInLock")
	imagepinWants(r, 0, []string{"lock", "rm"})
	for _, name := range []string{ref, lockedID, other} {
		if line, err := create(node.ContainerOptions{Image: name, UserImage: ref}, ""); err == nil {
			t.Errorf("without a lock, a container of %s runs and prints %q", name, line)
		}
	}
}

// TestStrictSandboxImage has a rule for the sandbox image. Sandboxes start, but no container runs that image.
func TestStrictSandboxImage(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**"]
locked = "strict"
`})
	pause := r.Options().SandboxImage
	p := r.MustPod("")
	if _, err := r.Pull(r.Ctx, pause, ""); err == nil {
		t.Error("the sandbox image is pulled for a container")
	}
	for _, name := range []string{pause, r.MustStatus(pause, "").GetId()} {
		_, err := r.CreateContainer(r.Ctx, p, node.ContainerOptions{Image: name, UserImage: pause})
		testkit.WantCode(t, err, codes.PermissionDenied, "NotInLock")
	}
}
