package config

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// A limit of our own or of the CRI's section holds; at its default it gives way to that of the transfer service.
func TestLimitsOfTheTransferService(t *testing.T) {
	for name, c := range map[string]struct {
		own, downloads, buffer   int // ours and the CRI's
		transfer                 *Transfer
		unpacks, fetches, pieces int
	}{
		"defaults":                {4, 3, 0, nil, 4, 3, 0},
		"the service's defaults":  {4, 3, 0, new(DefaultTransfer()), 4, 3, 0},
		"the service's":           {4, 3, 0, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6, ConcurrentLayerFetchBuffer: 1024}, 6, 8, 1024},
		"no limit of the service": {4, 3, 0, &Transfer{MaxConcurrentUnpacks: 1}, 4, 0, 0},
		"ours and the CRI's":      {2, 5, 512, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6, ConcurrentLayerFetchBuffer: 1024}, 2, 5, 512},
		"no limit of the CRI":     {1, 0, 0, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6}, 1, 0, 0},
	} {
		cri := CRI{Images: Images{MaxConcurrentDownloads: c.downloads, ConcurrentLayerFetchBuffer: c.buffer}, Transfer: c.transfer}
		if got := cri.MaxConcurrentUnpacks(Settings{MaxConcurrentUnpacks: c.own}); got != c.unpacks {
			t.Errorf("%s: %d layers are unpacked at once, not %d", name, got, c.unpacks)
		}
		if got := cri.MaxConcurrentDownloads(); got != c.fetches {
			t.Errorf("%s: %d layers are fetched at once, not %d", name, got, c.fetches)
		}
		if got := cri.ConcurrentLayerFetchBuffer(); got != c.pieces {
			t.Errorf("%s: pieces of %d bytes, not %d", name, got, c.pieces)
		}
	}
}

// What of the transfer service's section is not done is named.
func TestUnheededOfTheTransferService(t *testing.T) {
	transfer := DefaultTransfer()
	c := CRI{Transfer: &transfer}
	if said := c.Unsupported(); len(said) > 0 {
		t.Errorf("the defaults: %q", said)
	}
	transfer.ConfigPath, transfer.MaxConcurrentUploadedLayers = "/etc/certs", 1
	said := strings.Join(c.Unsupported(), "\n")
	for _, key := range []string{"config_path", "max_concurrent_uploaded_layers"} {
		if !strings.Contains(said, "[plugins.\""+TransferSection+"\"] "+key) {
			t.Errorf("%s is not named:\n%s", key, said)
		}
	}
	c.Images.Registry.ConfigPath, transfer.MaxConcurrentUploadedLayers = "/etc/certs", defaultUploads
	if said := c.Unsupported(); len(said) > 0 {
		t.Errorf("what holds: %q", said)
	}
}

func TestDiffers(t *testing.T) {
	handlers, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "overlayfs"}, {Name: "vm", Snapshotter: "erofs"}, {Name: "arm", Snapshotter: "native", Platform: "linux/arm64"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	// containerd's own default on Linux.
	byDefault := []Unpack{
		{Platform: "linux/amd64", Snapshotter: "overlayfs", Differ: "walking"},
		{Platform: "linux(+erofs)/amd64", Snapshotter: "erofs", Differ: "erofs", Optional: true},
	}
	for name, c := range map[string]struct {
		unpack []Unpack
		check  bool // check_platform_supported
		want   map[string]string
		says   []string // one for each that is ignored
	}{
		"nothing":             {nil, false, map[string]string{}, nil},
		"containerd's own":    {byDefault, false, map[string]string{"overlayfs": "walking", "erofs": "erofs"}, nil},
		"the first holds":     {append([]Unpack{{Platform: "linux/amd64", Snapshotter: "erofs", Differ: "walking"}}, byDefault...), false, map[string]string{"overlayfs": "walking", "erofs": "walking"}, []string{`unpack_config[3].differ is ignored: "walking" unpacks`}},
		"none is named":       {[]Unpack{{Platform: "linux/amd64", Snapshotter: "erofs"}}, false, map[string]string{"erofs": ""}, nil},
		"by system alone":     {[]Unpack{{Platform: "linux/s390x", Snapshotter: "native", Differ: "x"}}, false, map[string]string{"native": "x"}, nil},
		"by the platform":     {[]Unpack{{Platform: "linux/s390x", Snapshotter: "native", Differ: "x"}}, true, map[string]string{}, []string{`unpack_config[1] is ignored: no runtime handler unpacks linux/s390x in "native"`}},
		"another system":      {[]Unpack{{Platform: "windows/amd64", Snapshotter: "native", Differ: "x"}}, false, map[string]string{}, []string{"no runtime handler"}},
		"another snapshotter": {[]Unpack{{Platform: "linux/amd64", Snapshotter: "none", Differ: "x"}, {Platform: "linux/amd64", Snapshotter: "none", Differ: "x", Optional: true}}, false, map[string]string{}, []string{"unpack_config[1]"}},
		"no platform":         {[]Unpack{{Platform: "no such thing!", Snapshotter: "native"}}, false, map[string]string{}, []string{"unpack_config[1].platform"}},
		"artifacts":           {[]Unpack{{Platform: "linux/amd64", Snapshotter: "native", Differ: "x", LayerTypes: []string{"application/x"}}}, false, map[string]string{}, []string{"layer_types"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ignored := CRI{Transfer: &Transfer{Unpack: c.unpack, CheckPlatformSupported: c.check}}.Differs(handlers)
			if !maps.Equal(got, c.want) {
				t.Errorf("differs %v, not %v", got, c.want)
			}
			if len(ignored) != len(c.says) {
				t.Fatalf("ignored %q", ignored)
			}
			for i, says := range c.says {
				if !strings.Contains(ignored[i], says) || !strings.Contains(ignored[i], TransferSection) {
					t.Errorf("says %q, not %q", ignored[i], says)
				}
			}
		})
	}
}

// The section may stand in the file of imagepin serve, and is read strictly.
func TestTransferSectionOfAFile(t *testing.T) {
	section := "[plugins.'" + TransferSection + "']\n"
	b, err := ParseFile([]byte(section + "max_concurrent_unpacks = 6\n[[plugins.'" + TransferSection + "'.unpack_config]]\nplatform = 'linux/amd64'\nsnapshotter = 'erofs'\ndiffer = 'erofs'\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Inherit(ReportedConfig{})
	if err != nil || c.MaxConcurrentUnpacks(b.Settings) != 6 || c.MaxConcurrentDownloads() != defaultDownloads || len(c.Transfer.Unpack) != 1 {
		t.Errorf("%+v, %v", c.Transfer, err)
	}
	if _, err := ParseFile([]byte(section + "max_concurrent_unpack = 6")); err == nil || !strings.Contains(err.Error(), TransferSection) {
		t.Errorf("an unknown key: %v", err)
	}
}
