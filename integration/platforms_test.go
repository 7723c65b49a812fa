package integration

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// foreign is a platform that is not this machine's. Its images run here all the same, see [images.App].
const foreign = "linux/s390x"

// TestPlatformsOfOneTag pulls one tag for three handlers: the node's platform, another one, and that on another snapshotter. All are
// listed with the tag, and pods of all run side by side, by whatever name their containers are asked for.
func TestPlatformsOfOneTag(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{
		DiscardUnpackedLayers: true,
		Handlers: []node.Handler{
			{Name: "foreign", Platform: foreign},
			{Name: "foreign-native", Platform: foreign, Snapshotter: "native"},
		},
	})
	opts := images.Options{}
	tag, digest := r.push("app:v1", opts, foreign, images.HostPlatform(), "linux/arm/v7")
	platformOf := map[string]string{"": images.HostPlatform(), "foreign": foreign, "foreign-native": foreign}
	handlers := slices.Sorted(maps.Keys(platformOf))

	id := make(map[string]string)
	for _, h := range handlers {
		id[h] = r.pull(tag, h)
		if img := r.status(tag, h); img.GetId() != id[h] {
			t.Errorf("handler %q: ImageStatus says %q right after the pull gave %s", h, img.GetId(), id[h])
		}
	}
	if id["foreign"] != id["foreign-native"] || id["foreign"] == id[""] {
		t.Fatalf("image IDs %v", id)
	}
	if n := len(r.list()); n != 2 {
		t.Errorf("%d images are listed, not 2: %v", n, r.list())
	}
	for image, targets := range map[string]string{
		id[""]:        images.HostPlatform() + " on overlayfs",
		id["foreign"]: foreign + " on native, " + foreign + " on overlayfs",
	} {
		r.wantNames(image, []string{tag}, []string{digest})
		spec := r.list()[image].GetSpec()
		if got := spec.GetAnnotations()["io.imagepin.targets"]; got != targets {
			t.Errorf("image %s is listed for %q, not %q", image, got, targets)
		}
		if spec.GetRuntimeHandler() != "" {
			t.Errorf("image %s is listed with runtime handler %q, which kubelet's image GC takes for unused", image, spec.GetRuntimeHandler())
		}
	}

	pods := make(map[string]*node.Pod)
	for _, h := range handlers {
		pods[h] = r.pod(h)
	}
	r.reg.Down()
	manifest := r.manifestRecord(id["foreign"])
	for _, h := range handlers {
		want := line(opts, platformOf[h])
		names := []node.ContainerOptions{
			{Image: tag},
			{Image: digest},
			{Image: id[h]},
			{Image: id[h], UserImage: tag},
			// What kubelet passes whose look-up of the image found the other platform's.
			{Image: id[""], UserImage: tag},
			{Image: id["foreign"], UserImage: tag},
			{Image: id["foreign"]},
			{Image: strings.TrimPrefix(id[""], "sha256:")[:16], UserImage: tag},
		}
		if platformOf[h] == foreign {
			names = append(names, node.ContainerOptions{Image: manifest})
		}
		for _, opts := range names {
			c := r.wantLine(pods[h], opts, want)
			s, err := c.Status(r.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s.Image.GetImage() != tag || s.ImageRef != digest || s.ImageId != id[h] {
				t.Errorf("handler %q, container of %s: its status has image %q, image_ref %q, image_id %q, not %q, %q, %q",
					h, opts.Image, s.Image.GetImage(), s.ImageRef, s.ImageId, tag, digest, id[h])
			}
		}
	}
}

// manifestRecord is the name of the record that keeps an image of a foreign platform.
func (r *rig) manifestRecord(id string) string {
	r.t.Helper()
	img, err := r.Client().ImageService().Get(nsctx(r.ctx), id)
	if err != nil {
		r.t.Fatal(err)
	}
	repo, _, _ := strings.Cut(r.list()[id].RepoDigests[0], "@")
	return repo + "@" + img.Target.Digest.String()
}

// TestRecordsHaveStocksShape looks at the image records: a tag of the node's platform only, and no foreign platform under it, so
// that a stock containerd that is started on this root runs the right one.
func TestRecordsHaveStocksShape(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}, {Name: "native", Snapshotter: "native"}}})
	tag, digest := r.push("app:v1", images.Options{}, images.HostPlatform(), foreign)
	records := func() map[string]string {
		m := make(map[string]string)
		list, err := r.Client().ImageService().List(nsctx(r.ctx))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			m[i.Name] = i.Target.Digest.String()
		}
		return m
	}

	index := strings.TrimPrefix(digest, r.reg.Ref("app@"))
	foreignID := r.pull(tag, "foreign")
	manifest := records()[foreignID]
	want := map[string]string{foreignID: manifest, r.reg.Ref("app@" + manifest): manifest}
	if got := records(); manifest == index || !maps.Equal(got, want) {
		t.Errorf("records of a foreign image are %v, not %v", got, want)
	}
	id := r.pull(tag, "native")
	maps.Copy(want, map[string]string{tag: index, digest: index, id: index})
	if got := records(); !maps.Equal(got, want) {
		t.Errorf("records are %v, not %v", got, want)
	}
	if r.pull(tag, "") != id {
		t.Error("another snapshotter changes the image ID")
	}
	if got := records(); !maps.Equal(got, want) {
		t.Errorf("records of a second snapshotter are %v, not %v", got, want)
	}
	// What the index keeps alive is the chosen manifest and nothing else.
	info, err := r.Client().ContentStore().Info(nsctx(r.ctx), mustDigest(t, index))
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for label, value := range info.Labels {
		if strings.HasPrefix(label, "containerd.io/gc.ref.content") {
			kept = append(kept, value)
		}
	}
	if len(kept) != 1 || kept[0] == manifest {
		t.Errorf("the index keeps %q; of its manifests only that of the node's platform must be kept", kept)
	}
}

// TestCreateContainerAfterTheTagMoved creates a container by the ID that a pull gave, on a handler of another platform, after the
// tag has moved: what runs is the other platform of the digest that was pulled, and not what the tag means now.
func TestCreateContainerAfterTheTagMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	v1, v2 := images.Options{Version: "v1"}, images.Options{Version: "v2"}
	tag, first := r.push("app:latest", v1, images.HostPlatform(), foreign)
	id := r.pull(tag, "")
	_, second := r.push("app:latest", v2, images.HostPlatform(), foreign)
	newer := r.pull(tag, "foreign")

	p := r.pod("foreign")
	r.reg.Reset()
	r.wantLine(p, node.ContainerOptions{Image: id, UserImage: tag}, line(v1, foreign))
	// The program's layer is common to all; manifest, config and one layer are not.
	r.wantRequests("making ready the other platform of a digest", "GET manifest", "GET blob", "GET blob")
	r.wantLine(p, node.ContainerOptions{Image: newer, UserImage: tag}, line(v2, foreign))
	r.wantLine(p, node.ContainerOptions{Image: tag}, line(v2, foreign))
	r.offline("creating containers of images that are ready")

	r.wantNames(id, []string{tag}, []string{first})
	r.wantNames(newer, []string{tag}, []string{second})
}

// TestKubeletRunsTwoPlatforms runs pods with kubelet's own sequence of calls, its gate on and off, in both orders.
func TestKubeletRunsTwoPlatforms(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: foreign}}})
	platformOf := map[string]string{"runc": images.HostPlatform(), "foreign": foreign}
	for _, gate := range []bool{false, true} {
		for _, order := range [][]string{{"runc", "foreign"}, {"foreign", "runc"}} {
			name := order[0] + "-first"
			if gate {
				name += "-gate"
			}
			t.Run(name, func(t *testing.T) {
				r := r.in(t)
				opts := images.Options{Version: name, User: "12"}
				tag, _ := r.push("app:"+name, opts, foreign, images.HostPlatform())
				for range 2 {
					for _, h := range order {
						res, err := r.RunAsKubelet(r.ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: h}, Image: tag, Gate: gate})
						if err != nil {
							t.Fatalf("handler %s: %v", h, err)
						}
						o := opts
						o.Platform = platformOf[h]
						if want := o.Line(12); res.Line != want {
							t.Errorf("handler %s printed %q, not %q", h, res.Line, want)
						}
					}
				}
			})
		}
	}
}
