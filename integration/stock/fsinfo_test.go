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

// TestImageFsInfo reads the filesystems of images: one per snapshotter, the default one first, each with a directory that exists, as
// kubelet's eviction manager needs; and a pull shows in that of its snapshotter and in no other.
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
			t.Fatalf("%d filesystems, not %d: %v", len(all), len(snapshotters), all)
		}
		for i, fs := range all {
			mountpoint := fs.GetFsId().GetMountpoint()
			if want := r.Path("root", "io.containerd.snapshotter.v1."+snapshotters[i]); mountpoint != want {
				t.Errorf("filesystem %d is %q, not %s", i, mountpoint, want)
			}
			if fi, err := os.Stat(mountpoint); err != nil || !fi.IsDir() {
				t.Errorf("filesystem %d: %q is no directory: %v", i, mountpoint, err)
			}
			if fs.Timestamp == 0 || fs.UsedBytes == nil || fs.InodesUsed == nil {
				t.Errorf("filesystem %d says %v", i, fs)
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
		was := last
		r.Eventually("a pull shows in what "+grows+" uses", func() bool {
			last = used()
			return last[grows] >= was[grows]+size
		})
		if last[stays] != was[stays] {
			t.Errorf("a pull for handler %q changed what %s uses from %d to %d", handler, stays, was[stays], last[stays])
		}
		r.MustRemove(ref, "")
		r.Eventually("a removal shows in what "+grows+" uses", func() bool {
			last = used()
			return last[grows] <= was[grows]
		})
	}
}

// TestStreamImages streams more images than fit in one message and compares them with the list; and filters both.
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
		t.Errorf("%d images are streamed, not 4", n)
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
			t.Errorf("filtered by %s the list has %v", tag, i)
		}
	}
	if len(listed) != 2 {
		t.Errorf("filtered by a tag of two platforms %d images are listed: %v", len(listed), listed)
	}
	testkit.WantSameImages(t, "StreamImages with a filter:", listed, stream(filter))
	if n := len(stream(&cri.ImageFilter{Image: &cri.ImageSpec{Image: "nosuch"}})); n != 0 {
		t.Errorf("filtered by a name that nothing has %d images are streamed", n)
	}
}

// TestImagesAreAsStockShowsThem pulls the same images by stock and by ours, and compares what the two say of them.
func TestImagesAreAsStockShowsThem(t *testing.T) {
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
	testkit.WantSameImages(t, "beside stock's list:", testkit.WithoutSpec(stock.ImagesByID()), testkit.WithoutSpec(r.ImagesByID()))
	if n := len(r.ImagesByID()); n != len(refs) { // one has two tags, and the sandbox image is there
		t.Errorf("%d images, not %d", n, len(refs))
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
		one, other := map[string]*cri.Image{}, map[string]*cri.Image{}
		if images[0] != nil {
			one[""] = images[0]
		}
		if images[1] != nil {
			other[""] = images[1]
		}
		testkit.WantSameImages(t, "ImageStatus "+name+":", testkit.WithoutSpec(one), testkit.WithoutSpec(other))
		if infos[0] != infos[1] {
			t.Errorf("ImageStatus %s: info is\n%s\nwith stock\n%s", name, infos[1], infos[0])
		}
	}
}
