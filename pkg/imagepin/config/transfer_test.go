package config

import (
	"maps"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestLimitsOfTheTransferService checks that the transfer service's limits replace the default limits of imagepin and
// of the CRI.
func TestLimitsOfTheTransferService(t *testing.T) {
	for name, c := range map[string]struct {
		own, downloads, buffer   int // own is imagepin's max_concurrent_unpacks, the others are keys of the CRI
		transfer                 *Transfer
		unpacks, fetches, pieces int
	}{
		"defaults":                       {4, 3, 0, nil, 4, 3, 0},
		"service with defaults":          {4, 3, 0, new(DefaultTransfer()), 4, 3, 0},
		"service":                        {4, 3, 0, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6, ConcurrentLayerFetchBuffer: 1024}, 6, 8, 1024},
		"service without download limit": {4, 3, 0, &Transfer{MaxConcurrentUnpacks: 1}, 4, 0, 0},
		"imagepin and the CRI":           {2, 5, 512, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6, ConcurrentLayerFetchBuffer: 1024}, 2, 5, 512},
		"CRI without download limit":     {1, 0, 0, &Transfer{MaxConcurrentDownloads: 8, MaxConcurrentUnpacks: 6}, 1, 0, 0},
	} {
		cri := CRI{Images: Images{MaxConcurrentDownloads: c.downloads, ConcurrentLayerFetchBuffer: c.buffer}, Transfer: c.transfer}
		if got := cri.MaxConcurrentUnpacks(Settings{MaxConcurrentUnpacks: c.own}); got != c.unpacks {
			t.Errorf("%s: got %d concurrent unpacks, want %d", name, got, c.unpacks)
		}
		if got := cri.MaxConcurrentDownloads(); got != c.fetches {
			t.Errorf("%s: got %d concurrent downloads, want %d", name, got, c.fetches)
		}
		if got := cri.ConcurrentLayerFetchBuffer(); got != c.pieces {
			t.Errorf("%s: got a layer fetch buffer of %d bytes, want %d", name, got, c.pieces)
		}
	}
}

// TestUnsupportedTransferKeys checks that ignored keys of the transfer service's section cause warnings.
func TestUnsupportedTransferKeys(t *testing.T) {
	transfer := DefaultTransfer()
	c := CRI{Transfer: &transfer}
	if warnings := c.Unsupported(); len(warnings) > 0 {
		t.Errorf("unexpected warnings about defaults: %q", warnings)
	}
	transfer.ConfigPath, transfer.MaxConcurrentUploadedLayers = "/etc/certs", 1
	warnings := strings.Join(c.Unsupported(), "\n")
	for _, key := range []string{"config_path", "max_concurrent_uploaded_layers"} {
		if !strings.Contains(warnings, "[plugins.\""+TransferSection+"\"] "+key) {
			t.Errorf("no warning about %s:\n%s", key, warnings)
		}
	}
	c.Images.Registry.ConfigPath, transfer.MaxConcurrentUploadedLayers = "/etc/certs", defaultUploads
	if warnings := c.Unsupported(); len(warnings) > 0 {
		t.Errorf("unexpected warnings: %q", warnings)
	}
}

func TestDiffers(t *testing.T) {
	handlers := ctdtest.Runtimes(t, "overlayfs",
		runtimeplatform.Handler{Name: "vm", Snapshotter: "erofs"}, runtimeplatform.Handler{Name: "arm", Snapshotter: "native", Platform: "linux/arm64"})
	// containerd's own default on Linux.
	byDefault := []Unpack{
		{Platform: "linux/amd64", Snapshotter: "overlayfs", Differ: "walking"},
		{Platform: "linux(+erofs)/amd64", Snapshotter: "erofs", Differ: "erofs", Optional: true},
	}
	for name, c := range map[string]struct {
		unpack   []Unpack
		check    bool // check_platform_supported
		want     map[string]string
		warnings []string // one per ignored entry
	}{
		"empty":                       {nil, false, map[string]string{}, nil},
		"containerd's default":        {byDefault, false, map[string]string{"overlayfs": "walking", "erofs": "erofs"}, nil},
		"first entry wins":            {append([]Unpack{{Platform: "linux/amd64", Snapshotter: "erofs", Differ: "walking"}}, byDefault...), false, map[string]string{"overlayfs": "walking", "erofs": "walking"}, []string{`unpack_config[3].differ is ignored: "walking" already unpacks`}},
		"no differ":                   {[]Unpack{{Platform: "linux/amd64", Snapshotter: "erofs"}}, false, map[string]string{"erofs": ""}, nil},
		"only the OS matches":         {[]Unpack{{Platform: "linux/s390x", Snapshotter: "native", Differ: "x"}}, false, map[string]string{"native": "x"}, nil},
		"the platform does not match": {[]Unpack{{Platform: "linux/s390x", Snapshotter: "native", Differ: "x"}}, true, map[string]string{}, []string{`unpack_config[1] is ignored: no runtime handler unpacks linux/s390x in "native"`}},
		"another OS":                  {[]Unpack{{Platform: "windows/amd64", Snapshotter: "native", Differ: "x"}}, false, map[string]string{}, []string{"no runtime handler"}},
		"another snapshotter":         {[]Unpack{{Platform: "linux/amd64", Snapshotter: "none", Differ: "x"}, {Platform: "linux/amd64", Snapshotter: "none", Differ: "x", Optional: true}}, false, map[string]string{}, []string{"unpack_config[1]"}},
		"invalid platform":            {[]Unpack{{Platform: "no such thing!", Snapshotter: "native"}}, false, map[string]string{}, []string{"unpack_config[1].platform"}},
		"artifacts":                   {[]Unpack{{Platform: "linux/amd64", Snapshotter: "native", Differ: "x", LayerTypes: []string{"application/x"}}}, false, map[string]string{}, []string{"layer_types"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ignored := CRI{Transfer: &Transfer{Unpack: c.unpack, CheckPlatformSupported: c.check}}.Differs(handlers)
			if !maps.Equal(got, c.want) {
				t.Errorf("got differs %v, want %v", got, c.want)
			}
			if len(ignored) != len(c.warnings) {
				t.Fatalf("got warnings %q, want %q", ignored, c.warnings)
			}
			for i, want := range c.warnings {
				if !strings.Contains(ignored[i], want) || !strings.Contains(ignored[i], TransferSection) {
					t.Errorf("got warning %q, want %q", ignored[i], want)
				}
			}
		})
	}
}

// TestTransferSectionOfAFile checks that the file of imagepin serve can have the section, and that it is decoded
// strictly.
func TestTransferSectionOfAFile(t *testing.T) {
	section := "[plugins.'" + TransferSection + "']\n"
	b, err := ParseFile([]byte(section + "max_concurrent_unpacks = 6\n[[plugins.'" + TransferSection + "'.unpack_config]]\nplatform = 'linux/amd64'\nsnapshotter = 'erofs'\ndiffer = 'erofs'\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Inherit(ReportedConfig{})
	if err != nil || c.MaxConcurrentUnpacks(b.Settings) != 6 || c.MaxConcurrentDownloads() != defaultDownloads || len(c.Transfer.Unpack) != 1 {
		t.Errorf("unexpected section %+v, %v", c.Transfer, err)
	}
	if _, err := ParseFile([]byte(section + "max_concurrent_unpack = 6")); err == nil || !strings.Contains(err.Error(), TransferSection) {
		t.Errorf("unknown key: got %v, want an error", err)
	}
}
