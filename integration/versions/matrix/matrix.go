// Package matrix lists the containerds and kubelets that imagepin is tested with, and formats their tables in RELEASES.md.
package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Outcome is the expected result of the test with a containerd.
type Outcome string

// The outcomes.
const (
	Works    Outcome = "works"
	Refused  Outcome = "refused"
	Untested Outcome = "-"
)

// Containerd is a containerd that imagepin is tested with.
type Containerd struct {
	// Name is the version without the v, or the Debian suite, whose containerd changes.
	Name string
	// Version is empty if it is not known before containerd runs.
	Version string
	// Dir is the directory of its binaries, below the directory of all binaries.
	Dir string
	// Plugin is the outcome for imagepin as plugin, Serve that for imagepin serve.
	Plugin, Serve Outcome
}

var required = regexp.MustCompile(`(?m)^\s*github\.com/containerd/containerd/v2 (v\S+)`)

// Read returns the containerds of the repository at root: that of go.mod, those of the modules below
// integration/versions, and those of Debian. In each group, the newest is first.
func Read(root string) ([]Containerd, error) {
	versions := filepath.Join(root, "integration", "versions")
	modules, err := filepath.Glob(filepath.Join(versions, "*.*", "go.mod"))
	if err != nil {
		return nil, err
	}
	slices.Reverse(modules)
	var all []Containerd
	for i, module := range append([]string{filepath.Join(root, "go.mod")}, modules...) {
		text, err := os.ReadFile(module)
		if err != nil {
			return nil, err
		}
		found := required.FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s requires no containerd", module)
		}
		c := Containerd{Version: string(found[1]), Plugin: Works, Serve: Works}
		c.Name = strings.TrimPrefix(c.Version, "v")
		if i > 0 {
			c.Dir = "containerd-" + filepath.Base(filepath.Dir(module))
		}
		all = append(all, c)
	}
	text, err := os.ReadFile(filepath.Join(versions, "debian.txt"))
	if err != nil {
		return nil, err
	}
	debian, err := readDebian(string(text))
	return append(all, debian...), err
}

func readDebian(text string) ([]Containerd, error) {
	var all []Containerd
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != string(Works) && fields[1] != string(Refused) {
			return nil, fmt.Errorf("debian.txt: %q is not a suite and its outcome", line)
		}
		all = append(all, Containerd{
			Name: "Debian " + fields[0], Dir: "containerd-debian-" + fields[0], Plugin: Untested, Serve: Outcome(fields[1]),
		})
	}
	slices.Reverse(all)
	return all, nil
}
