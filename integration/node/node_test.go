package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func TestConfigMerges(t *testing.T) {
	b, _, err := Options{
		Handlers: []Handler{{Name: "second", Snapshotter: "native", Platform: "linux/arm64", Extra: "disable_pause_image_pull = true"}},
		Extra: `[plugins."io.containerd.cri.v1.images"]
max_concurrent_downloads = 9
[plugins."io.containerd.cri.v1.images".image_decryption]
key_model = "{root}"`,
	}.withDefaults().configs("/r")
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Plugins struct {
			Images struct {
				Snapshotter  string                       `toml:"snapshotter"`
				Downloads    int                          `toml:"max_concurrent_downloads"`
				RuntimePlats map[string]map[string]string `toml:"runtime_platforms"`
				Decrypt      map[string]string            `toml:"image_decryption"`
			} `toml:"io.containerd.cri.v1.images"`
			Runtime struct {
				Containerd struct {
					Runtimes map[string]map[string]any `toml:"runtimes"`
				} `toml:"containerd"`
			} `toml:"io.containerd.cri.v1.runtime"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	i := c.Plugins.Images
	if i.Snapshotter != "overlayfs" || i.Downloads != 9 || i.Decrypt["key_model"] != "/r" || i.RuntimePlats["second"]["platform"] != "linux/arm64" {
		t.Errorf("got images section %+v", i)
	}
	rt := c.Plugins.Runtime.Containerd.Runtimes
	if len(rt) != 2 || rt["second"]["snapshotter"] != "native" || rt["second"]["disable_pause_image_pull"] != true {
		t.Errorf("got runtimes %+v", rt)
	}
}

func TestSweepTakesDeadOwnersOnly(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	dir := func(pid int) string {
		d := filepath.Join(os.TempDir(), rootPrefix+strconv.Itoa(pid)+"-x")
		if err := os.MkdirAll(filepath.Join(d, "root"), 0o755); err != nil {
			t.Fatal(err)
		}
		return d
	}
	dead, running := dir(child.Process.Pid), dir(os.Getpid())
	// A test has mounted its own filesystem there.
	if err := syscall.Mount("tmpfs", dead, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("root of a dead process: got %v, want a removed root", err)
	}
	if _, err := os.Stat(running); err != nil {
		t.Errorf("root of a running process: got %v, want the root", err)
	}
}

func TestInvalidRoots(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{Ours, "containerd-shim-runc-v2", "runc", "ctr"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for root, want := range map[string]string{
		"/tmp/" + rootPrefix + strings.Repeat("x", maxRoot): "longer than",
		"/tmp/" + rootPrefix + "1-2/r":                      "not from TempDir",
	} {
		if _, err := New(Options{Root: root, BinDir: bin}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one that contains %q", root, err, want)
		}
		if _, err := os.Stat(root); !os.IsNotExist(err) {
			t.Errorf("%s: got %v, want no such directory", root, err)
		}
	}
}
