package stock

import (
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

func filesystems(r *testkit.Rig) []*cri.FilesystemUsage {
	r.T.Helper()
	res, err := r.Images().ImageFsInfo(r.Ctx, &cri.ImageFsInfoRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	return res.ImageFilesystems
}

// TestImageFsInfo checks that ImageFsInfo returns one filesystem for each snapshotter, the default one first. Each is
// an existing directory, as kubelet's eviction manager needs. A pull changes the usage of its own snapshotter only.
func TestImageFsInfo(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{
		StatsCollectPeriod: 1, Snapshotter: "native",
		Handlers: []node.Handler{
			{Name: "overlay", Snapshotter: "overlayfs"},
			{Name: "foreign", Platform: testkit.Foreign, Snapshotter: "overlayfs"},
			{Name: "other", Snapshotter: "native"},
		},
	})
	snapshotters := []string{"native", "overlayfs"}
	used := func() map[string]uint64 {
		t.Helper()
		all := filesystems(r)
		m := make(map[string]uint64)
		if len(all) != len(snapshotters) {
			t.Fatalf("got %d filesystems, want %d: %v", len(all), len(snapshotters), all)
		}
		for i, fs := range all {
			mountpoint := fs.GetFsId().GetMountpoint()
			if want := r.Path("root", "io.containerd.snapshotter.v1."+snapshotters[i]); mountpoint != want {
				t.Errorf("filesystem %d: got %q, want %s", i, mountpoint, want)
			}
			if fi, err := os.Stat(mountpoint); err != nil || !fi.IsDir() {
				t.Errorf("filesystem %d: %q is not a directory: %v", i, mountpoint, err)
			}
			if fs.Timestamp == 0 || fs.UsedBytes == nil || fs.InodesUsed == nil {
				t.Errorf("filesystem %d is incomplete: %v", i, fs)
			}
			m[snapshotters[i]] = fs.GetUsedBytes().GetValue()
		}
		return m
	}
	const size = 5 << 20
	last := used()
	for i, handler := range []string{"overlay", "", "foreign"} {
		ref, _ := r.Push("app:"+testkit.HandlerName(handler), images.Options{
			Version: handler, Random: []images.Random{{Size: size, Seed: uint64(i)}},
		}, images.HostPlatform(), testkit.Foreign)
		r.MustPull(ref, handler)
		grows, stays := "overlayfs", "native"
		if handler == "" {
			grows, stays = stays, grows
		}
		before := last
		r.Eventually("the usage of "+grows+" grows by the pull", func() bool {
			last = used()
			return last[grows] >= before[grows]+size
		})
		if last[stays] != before[stays] {
			t.Errorf("a pull for handler %q changed the usage of %s from %d to %d", handler, stays, before[stays], last[stays])
		}
		r.MustRemove(ref, "")
		r.Eventually("the usage of "+grows+" shrinks by the removal", func() bool {
			last = used()
			return last[grows] <= before[grows]
		})
	}
}

// TestStreamImages checks that StreamImages returns the same images as ListImages, with and without a filter.
func TestStreamImages(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}}})
	var tag string
	for _, version := range []string{"v1", "v2", "v3"} {
		tag, _ = r.Push("app:"+version, images.Options{Version: version}, images.HostPlatform(), testkit.Foreign)
		r.MustPull(tag, "")
	}
	r.MustPull(tag, "foreign")
	stream := func(filter *cri.ImageFilter) map[string]*cri.Image {
		s, err := r.Images().StreamImages(r.Ctx, &cri.StreamImagesRequest{Filter: filter})
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[string]*cri.Image)
		for {
			res, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return m
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range res.Images {
				m[i.Id] = i
			}
		}
	}
	testkit.WantSameImages(t, "StreamImages:", r.ImagesByID(), stream(nil))
	if n := len(stream(nil)); n != 4 {
		t.Errorf("got %d streamed images, want 4", n)
	}
	filter := &cri.ImageFilter{Image: &cri.ImageSpec{Image: tag}}
	res, err := r.Images().ListImages(r.Ctx, &cri.ListImagesRequest{Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]*cri.Image)
	for _, i := range res.Images {
		listed[i.Id] = i
		if !slices.Equal(i.RepoTags, []string{tag}) {
			t.Errorf("ListImages with filter %s returns %v", tag, i)
		}
	}
	if len(listed) != 2 {
		t.Errorf("ListImages with a tag of two platforms as filter: got %d images, want 2: %v", len(listed), listed)
	}
	testkit.WantSameImages(t, "StreamImages with a filter:", listed, stream(filter))
	if n := len(stream(&cri.ImageFilter{Image: &cri.ImageSpec{Image: "nosuch"}})); n != 0 {
		t.Errorf("StreamImages with an unknown name as filter: got %d images, want 0", n)
	}
}

// TestImagesMatchStock pulls the same images with stock and with imagepin, and compares ListImages and ImageStatus.
func TestImagesMatchStock(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	stock := &testkit.Rig{T: t, Ctx: r.Ctx, Reg: r.Reg, Node: testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: r.Options().SandboxImage})}
	both := []*testkit.Rig{stock, r}

	var refs, names []string
	add := func(tag, digest string) {
		refs = append(refs, tag)
		names = append(names, tag, digest)
	}
	for name, opts := range map[string]images.Options{
		"plain":    {},
		"uid":      {User: "5:6"},
		"username": {User: "nobody:nogroup"},
		"root":     {User: "0"},
		"docker":   {Format: images.Docker},
		"zstd":     {Compression: images.Zstd, Labels: map[string]string{"a": "b"}, Volumes: []string{"/data"}},
	} {
		opts.Version = name
		add(r.Push("index:"+name, opts, testkit.Foreign, images.HostPlatform()))
		opts.Version = "single-" + name
		add(r.PushImage("single:"+name, testkit.App(t, opts)))
	}
	nested, err := images.Index(images.OCI, images.Entry{Index: testkit.AppIndex(t, images.Options{Version: "nested"}, testkit.Foreign, images.HostPlatform())})
	if err != nil {
		t.Fatal(err)
	}
	add(r.Pushed("nested:v1", testkit.Push(t, r.Reg, "nested:v1", nested)))
	tag, _ := r.Push("index:again", images.Options{Version: "plain"}, testkit.Foreign, images.HostPlatform())
	add(tag, tag)
	names = append(names, r.Options().SandboxImage, r.Reg.Ref("nosuch:v1"), "nosuch", "not a reference")

	for _, n := range both {
		for _, ref := range append(slices.Clone(refs), n.Options().SandboxImage) {
			names = append(names, n.MustPull(ref, ""))
		}
		if _, err := n.PullWith(n.Ctx, names[1], node.PullOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WantSameImages(t, "ListImages, compared with stock:", testkit.WithoutSpec(stock.ImagesByID()), testkit.WithoutSpec(r.ImagesByID()))
	if n := len(r.ImagesByID()); n != len(refs) { // one image has two tags, and the sandbox image is listed too
		t.Errorf("got %d images, want %d", n, len(refs))
	}
	for _, name := range names {
		var images [2]*cri.Image
		var infos [2]string
		for i, n := range both {
			res, err := n.Images().ImageStatus(n.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}, Verbose: true})
			if err != nil {
				t.Fatalf("ImageStatus %s: %v", name, err)
			}
			images[i], infos[i] = res.Image, res.Info["info"]
		}
		want, got := map[string]*cri.Image{}, map[string]*cri.Image{}
		if images[0] != nil {
			want[""] = images[0]
		}
		if images[1] != nil {
			got[""] = images[1]
		}
		testkit.WantSameImages(t, "ImageStatus "+name+":", testkit.WithoutSpec(want), testkit.WithoutSpec(got))
		if infos[0] != infos[1] {
			t.Errorf("ImageStatus %s: got info\n%s\nwant, as stock\n%s", name, infos[1], infos[0])
		}
	}
}
