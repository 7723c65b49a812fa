package kubelet

import (
	"strings"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
)

// testSubPaths mounts a directory of an image volume in each class, after the tag has moved: of the tag, which is pinned, and of the
// newer digest. For a directory that the image does not have, kubelet gets containerd's error.
func (r *kubeletRig) testSubPaths() {
	// push pushes an image for two platforms whose file models/build has its platform and version.
	push := func(version string) (tag, digest string) {
		r.T.Helper()
		var entries []images.Entry
		for _, platform := range []string{images.HostPlatform(), foreign} {
			files := images.Files{"/models/build": []byte(platform + "," + version)}
			entries = append(entries, images.Entry{Image: testkit.App(r.T, images.Options{Platform: platform, Version: version, Files: []images.Files{files}})})
		}
		index, err := images.Index(images.OCI, entries...)
		if err != nil {
			r.T.Fatal(err)
		}
		d := testkit.Push(r.T, r.Reg, "pinned/models:v1", index)
		return r.Reg.Ref("pinned/models:v1"), r.Reg.Ref("pinned/models@" + d.String())
	}
	// pod creates a pod that prints a file of its own, and the same of each volume.
	pod := func(name, class, subPath, tag, digest string) *core.Pod {
		r.T.Helper()
		p := r.reader("subpath-"+name, class, tag, "/models/build", "/tag/build", "/digest/build")
		mount(p, tag, "/tag", subPath)
		mount(p, digest, "/digest", subPath)
		r.create(p)
		return p
	}
	want := func(p *core.Pod, class string, versions ...string) {
		r.T.Helper()
		for i, v := range versions {
			versions[i] = platformOf(class) + "," + v
		}
		r.wantLog(r.waitPod(p, "ends", terminated), 0, strings.Join(versions, "\n"))
		r.delete(p)
	}
	tag, first := push("first")
	want(pod("first", "", "models", tag, first), "", "first", "first", "first")
	_, next := push("next")
	pods := map[string]*core.Pod{}
	for _, class := range classes {
		pods[class] = pod("pinned", class, "models", tag, next)
	}
	missing := pod("missing", "", "models/missing", tag, next)
	for class, p := range pods {
		want(p, class, "first", "first", "next")
	}
	now := r.waitPod(missing, "is rejected", waiting("CreateContainerError"))
	const message = `ImageVolumeMountFailed: failed to ensure image subpath "models/missing"`
	if m := now.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(m, message) {
		r.T.Errorf("a directory that is not in the image: got message %q, want %s", m, message)
	}
	r.delete(missing)
}
