package pull

import (
	"bytes"
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPlatformsOfOneTag pulls one tag for three handlers: with the node's platform, a foreign platform, and the foreign
// one in another snapshotter. All are listed with the tag, and their pods run side by side, by any name of the image.
func TestPlatformsOfOneTag(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{
		DiscardUnpackedLayers: true,
		Handlers: []node.Handler{
			{Name: "foreign", Platform: testkit.Foreign},
			{Name: "foreign-native", Platform: testkit.Foreign, Snapshotter: "native"},
		},
	})
	opts := images.Options{}
	tag, digest := r.Push("app:v1", opts, testkit.Foreign, images.HostPlatform(), "linux/arm/v7")
	platformOf := map[string]string{"": images.HostPlatform(), "foreign": testkit.Foreign, "foreign-native": testkit.Foreign}
	handlers := slices.Sorted(maps.Keys(platformOf))

	id := make(map[string]string)
	for _, h := range handlers {
		id[h] = r.MustPull(tag, h)
		if img := r.MustStatus(tag, h); img.GetId() != id[h] {
			t.Errorf("handler %q: ImageStatus after the pull: got %q, want %s", h, img.GetId(), id[h])
		}
	}
	if id["foreign"] != id["foreign-native"] || id["foreign"] == id[""] {
		t.Fatalf("got image IDs %v", id)
	}
	if n := len(r.Listed()); n != 2 {
		t.Errorf("got %d listed images, want 2: %v", n, r.Listed())
	}
	for image, targets := range map[string]string{
		id[""]:        images.HostPlatform() + " on overlayfs",
		id["foreign"]: testkit.Foreign + " on native, " + testkit.Foreign + " on overlayfs",
	} {
		r.WantNames(image, []string{tag}, []string{digest})
		spec := r.Listed()[image].GetSpec()
		if got := spec.GetAnnotations()["io.imagepin.targets"]; got != targets {
			t.Errorf("image %s: got targets %q, want %q", image, got, targets)
		}
		if spec.GetRuntimeHandler() != "" {
			t.Errorf("image %s: got runtime handler %q, want none: kubelet's image GC takes it for unused", image, spec.GetRuntimeHandler())
		}
	}

	pods := make(map[string]*node.Pod)
	for _, h := range handlers {
		pods[h] = r.MustPod(h)
	}
	r.Reg.Down()
	manifest := manifestRecord(r, id["foreign"])
	for _, h := range handlers {
		want := testkit.Line(opts, platformOf[h])
		names := []node.ContainerOptions{
			{Image: tag},
			{Image: digest},
			{Image: id[h]},
			{Image: id[h], UserImage: tag},
			// kubelet passes such an ID if its lookup found the other platform.
			{Image: id[""], UserImage: tag},
			{Image: id["foreign"], UserImage: tag},
			{Image: id["foreign"]},
			{Image: strings.TrimPrefix(id[""], "sha256:")[:16], UserImage: tag},
		}
		if platformOf[h] == testkit.Foreign {
			names = append(names, node.ContainerOptions{Image: manifest})
		}
		for _, opts := range names {
			c := r.WantLine(pods[h], opts, want)
			s, err := c.Status(r.Ctx)
			if err != nil {
				t.Fatal(err)
			}
			if s.Image.GetImage() != tag || s.ImageRef != digest || s.ImageId != id[h] {
				t.Errorf("handler %q, container of %s: got image %q, image_ref %q, image_id %q, want %q, %q, %q",
					h, opts.Image, s.Image.GetImage(), s.ImageRef, s.ImageId, tag, digest, id[h])
			}
		}
	}
}

// manifestRecord returns the name of the record that keeps a foreign image.
func manifestRecord(r *testkit.Rig, id string) string {
	r.T.Helper()
	img, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), id)
	if err != nil {
		r.T.Fatal(err)
	}
	repo, _, _ := strings.Cut(r.Listed()[id].RepoDigests[0], "@")
	return repo + "@" + img.Target.Digest.String()
}

// TestRecordsCompatibleWithStock checks that the record of a tag is for the node's platform only, so that a stock
// containerd on the same root runs the right platform.
func TestRecordsCompatibleWithStock(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}, {Name: "native", Snapshotter: "native"}}})
	tag, digest := r.Push("app:v1", images.Options{}, images.HostPlatform(), testkit.Foreign)
	records := func() map[string]string {
		m := make(map[string]string)
		list, err := r.Client().ImageService().List(testkit.NSContext(r.Ctx))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			m[i.Name] = i.Target.Digest.String()
		}
		return m
	}

	index := strings.TrimPrefix(digest, r.Reg.Ref("app@"))
	foreignID := r.MustPull(tag, "foreign")
	manifest := records()[foreignID]
	want := map[string]string{foreignID: manifest, r.Reg.Ref("app@" + manifest): manifest}
	if got := records(); manifest == index || !maps.Equal(got, want) {
		t.Errorf("records of a foreign image: got %v, want %v", got, want)
	}
	id := r.MustPull(tag, "native")
	maps.Copy(want, map[string]string{tag: index, digest: index, id: index})
	if got := records(); !maps.Equal(got, want) {
		t.Errorf("records: got %v, want %v", got, want)
	}
	if r.MustPull(tag, "") != id {
		t.Error("another snapshotter changes the image ID")
	}
	if got := records(); !maps.Equal(got, want) {
		t.Errorf("records of a second snapshotter: got %v, want %v", got, want)
	}
	// The index keeps only the chosen manifest.
	info, err := r.Client().ContentStore().Info(testkit.NSContext(r.Ctx), testkit.MustDigest(t, index))
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
		t.Errorf("the index keeps %q, want only the manifest of the node's platform", kept)
	}
}

// TestCreateContainerAfterTheTagMoved creates a container by the ID of a pull, for a handler of another platform, after
// the tag has moved. It runs the other platform of the digest that was pulled, not the tag's current digest.
func TestCreateContainerAfterTheTagMoved(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	v1, v2 := images.Options{Version: "v1"}, images.Options{Version: "v2"}
	tag, first := r.Push("app:latest", v1, images.HostPlatform(), testkit.Foreign)
	id := r.MustPull(tag, "")
	_, second := r.Push("app:latest", v2, images.HostPlatform(), testkit.Foreign)
	newer := r.MustPull(tag, "foreign")

	p := r.MustPod("foreign")
	r.Reg.Reset()
	r.WantLine(p, node.ContainerOptions{Image: id, UserImage: tag}, testkit.Line(v1, testkit.Foreign))
	// All images share the program's layer, but not manifest, config and one layer.
	r.WantRequests("making the other platform of a digest ready", "GET manifest", "GET blob", "GET blob")
	r.WantLine(p, node.ContainerOptions{Image: newer, UserImage: tag}, testkit.Line(v2, testkit.Foreign))
	r.WantLine(p, node.ContainerOptions{Image: tag}, testkit.Line(v2, testkit.Foreign))
	r.WantNoRequests("creating containers of ready images")

	r.WantNames(id, []string{tag}, []string{first})
	r.WantNames(newer, []string{tag}, []string{second})
}

// TestKubeletRunsTwoPlatforms runs pods with kubelet's calls, with its feature gate on and off, in both orders.
func TestKubeletRunsTwoPlatforms(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	platformOf := map[string]string{"runc": images.HostPlatform(), "foreign": testkit.Foreign}
	for _, gate := range []bool{false, true} {
		for _, order := range [][]string{{"runc", "foreign"}, {"foreign", "runc"}} {
			name := order[0] + "-first"
			if gate {
				name += "-gate"
			}
			t.Run(name, func(t *testing.T) {
				r := r.In(t)
				opts := images.Options{Version: name, User: "12"}
				tag, _ := r.Push("app:"+name, opts, testkit.Foreign, images.HostPlatform())
				for range 2 {
					for _, h := range order {
						res, err := r.RunAsKubelet(r.Ctx, node.KubeletPod{PodOptions: node.PodOptions{Handler: h}, Image: tag, Gate: gate})
						if err != nil {
							t.Fatalf("handler %s: %v", h, err)
						}
						o := opts
						o.Platform = platformOf[h]
						if want := o.Line(12); res.Line != want {
							t.Errorf("handler %s: got %q, want %q", h, res.Line, want)
						}
					}
				}
			})
		}
	}
}

// TestManifestOfAnotherPlatform pulls the manifest of another platform by its digest, with the command and the CRI. As on stock
// containerd, the pull succeeds. The command prints one warning, which is not in its output for programs.
func TestManifestOfAnotherPlatform(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}, {Name: "foreign", Platform: testkit.Foreign}}})
	foreign := testkit.App(t, images.Options{Platform: testkit.Foreign})
	_, ref := r.PushImage("app:v1", foreign)
	host := images.HostPlatform()
	for _, c := range []struct {
		handler, format, ref, other string
	}{
		{"", "table", ref, testkit.Foreign}, {"", "json", ref, testkit.Foreign}, {"native", "yaml", ref, testkit.Foreign}, {"foreign", "json", ref, ""},
	} {
		args := []string{"--address", r.Address(), "-o", c.format, "pull", c.ref}
		if c.handler != "" {
			args = append(args, "--handler", c.handler)
		}
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(r.Ctx, filepath.Join(r.Options().BinDir, "imagepin"), args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		warning := ""
		if c.other != "" {
			warning = "imagepin: warning: " + c.ref + " is an image for " + c.other + ", not for " + host + ": it does not run here without emulation\n"
		}
		// With an output for programs, the progress is on standard error, too.
		progress, found := strings.CutSuffix(stderr.String(), warning)
		if !found || strings.Contains(progress, "warning") || c.format == "table" && progress != "" {
			t.Errorf("-o %s for handler %q: standard error is %q, want the warning %q at its end", c.format, c.handler, stderr.String(), warning)
		}
		if strings.Contains(stdout.String(), "warning") {
			t.Errorf("-o %s: the warning is in the output:\n%s", c.format, stdout.String())
		}
		if c.format != "json" {
			continue
		}
		var got struct {
			Key           struct{ Ref string }
			OtherPlatform string
		}
		if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || got.Key.Ref != c.ref || got.OtherPlatform != c.other {
			t.Errorf("handler %q: got %+v, %v, want other platform %q:\n%s", c.handler, got, err, c.other, stdout.String())
		}
	}
	id, err := foreign.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.MustPull(ref, ""); got != id.String() {
		t.Errorf("PullImage returned %q, want %s", got, id)
	}
	if n := strings.Count(r.Logs(), "the image is for another platform"); n == 0 {
		t.Error("the log has no warning")
	}
}
