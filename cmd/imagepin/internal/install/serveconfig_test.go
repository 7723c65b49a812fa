//go:build unix

package install

import (
	"os"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// TestAddSections adds containerd's sections to the configuration of the packages.
func TestAddSections(t *testing.T) {
	packaged, err := os.ReadFile("../../../../packaging/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := addSections(packaged, []byte(`version = 3
[plugins.'io.containerd.cri.v1.images']
max_concurrent_downloads = 7
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '/etc/mirrors'
[plugins.'io.containerd.cri.v1.runtime']
enable_selinux = true
`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.ParseFile(got)
	if err != nil {
		t.Fatalf("%v in\n%s", err, got)
	}
	if c.Address != config.DefaultServeAddress || !strings.Contains(string(got), "/etc/mirrors") || !strings.Contains(string(got), "docs/digest-policy.md") {
		t.Errorf("got\n%s", got)
	}
	if _, err := addSections([]byte("version = 3\n"), nil); err == nil {
		t.Error("a configuration without the section is accepted")
	}
	if _, err := addSections(packaged, []byte("= 3")); err == nil {
		t.Error("a dump that cannot be parsed is accepted")
	}
}
