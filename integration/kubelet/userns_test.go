package kubelet

import (
	"slices"
	"strings"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
)

// testUserNamespaces runs pods with hostUsers: false in each class. After the tag has moved, they run the pinned digest for their
// platform, also from an image volume, and their users are those of the namespace.
func (r *kubeletRig) testUserNamespaces() {
	tag, digest := r.push("pinned/users:v1", images.Options{Version: "first"})
	run := func(name string, classes ...string) {
		r.T.Helper()
		pods := map[string]*core.Pod{}
		for _, class := range classes {
			p := r.reader("users-"+name, class, tag, "/proc/self/uid_map", "/facts", "/v/facts")
			p.Spec.HostNetwork, p.Spec.HostUsers = false, new(bool)
			mount(p, tag, "/v", "")
			r.create(p)
			pods[class] = p
		}
		for class, p := range pods {
			p = r.waitPod(p, "ends", terminated)
			got, err := r.k.Log(p, "c", 0)
			if err != nil {
				r.T.Fatal(err)
			}
			// The map is the first user in the namespace, the same user on the node, and their number.
			facts := platformOf(class) + ",first"
			if f := strings.Fields(got); len(f) != 5 || f[1] == "0" || !slices.Equal(slices.Delete(f, 1, 2), []string{"0", "65536", facts, facts}) {
				r.T.Errorf("pod %s: got map of users and files %q, want 65536 mapped users and %s twice", p.Name, got, facts)
			}
			if c := p.Status.ContainerStatuses[0]; c.ImageID != digest {
				r.T.Errorf("pod %s: got imageID %s, want %s", p.Name, c.ImageID, digest)
			}
			r.delete(p)
		}
	}
	run("first", "")
	r.push("pinned/users:v1", images.Options{Version: "next"})
	run("pinned", classes...)
}
