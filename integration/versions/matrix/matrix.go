// Package matrix is which containerds imagepin is tested with, and the table of them in RELEASES.md.
package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Outcome is what a test of a containerd has to find.
type Outcome string

// The outcomes.
const (
	Works    Outcome = "works"
	Refused  Outcome = "refused"
	Untested Outcome = "-"
)

// Containerd is one that imagepin is tested with.
type Containerd struct {
	// Name is its version without the v, or whose it is: Debian's change under the same name.
	Name string
	// Version is empty where it is not known before it runs.
	Version string
	// Dir is where its binaries are, below the directory of all binaries.
	Dir string
	// Plugin is for imagepin in it, Serve for imagepin serve beside it.
	Plugin, Serve Outcome
}

var required = regexp.MustCompile(`(?m)^\s*github\.com/containerd/containerd/v2 (v\S+)`)

// Read gives those of the repository at root, the newest first: the one in go.mod, those of the modules below
// integration/versions, and Debian's.
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
			return nil, fmt.Errorf("debian.txt: %q is not a suite and what is expected of it", line)
		}
		all = append(all, Containerd{
			Name: "Debian " + fields[0], Dir: "containerd-debian-" + fields[0], Plugin: Untested, Serve: Outcome(fields[1]),
		})
	}
	slices.Reverse(all)
	return all, nil
}
