package imagepin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/imagepin/imagepin/"

// floors are our packages from the lowest to the highest; those on one floor
// do not know each other.
var floors = [][]string{
	{"api/imagepin/v1", "internal/failpoint", "pkg/runtimeplatform", "pkg/imagepin/internal/keyed", "pkg/imagepin/internal/order", "pkg/imagepin/internal/flight", "pkg/imagepin/internal/blobs", "pkg/imagepin/internal/pieces", "pkg/imagepin/policy"},
	{"pkg/imagepin"},
	{"pkg/imagepin/internal/lease", "pkg/imagepin/pin"},
	{"pkg/imagepin/retain"},
	{"pkg/imagepin/store", "pkg/imagepin/resolve"},
	{"pkg/imagepin/decide", "pkg/imagepin/config", "pkg/imagepin/health"},
	{"pkg/imagepin/pull"},
	{"pkg/imagepin/reconcile", "pkg/imagepin/metrics"},
	{"pkg/imagepin/cri", "pkg/imagepin/control"},
	{"pkg/imagepin/node"},
	{"plugins/imagepin", "pkg/imagepin/serve"},
}

// stableContainerd are the parts of containerd that its RELEASES.md promises to
// keep.
var stableContainerd = []string{"client", "pkg", "core", "api", "plugins", "defaults", "version"}

type listed struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// testOnly tells whether a package exists for tests.
func testOnly(pkg string) bool { return strings.HasSuffix(pkg, "test") }

func TestOnlyStablePartsOfContainerd(t *testing.T) {
	for _, p := range list(t, module+"pkg/...", module+"plugins/...") {
		for _, imp := range p.Imports {
			rest, ok := strings.CutPrefix(imp, "github.com/containerd/containerd/")
			if !ok {
				continue
			}
			rest = strings.TrimPrefix(rest, "v2/")
			part, _, _ := strings.Cut(rest, "/")
			if !slices.Contains(stableContainerd, part) || slices.Contains(strings.Split(rest, "/"), "internal") {
				t.Errorf("%s imports %s, which containerd does not promise to keep", p.ImportPath, imp)
			}
		}
	}
}

func TestNothingImportsUpwards(t *testing.T) {
	floor := func(pkg string) int {
		return slices.IndexFunc(floors, func(f []string) bool { return slices.Contains(f, strings.TrimPrefix(pkg, module)) })
	}
	for _, p := range list(t, module+"pkg/...", module+"plugins/...") {
		if testOnly(p.ImportPath) {
			continue
		}
		on := floor(p.ImportPath)
		if on < 0 {
			t.Errorf("%s stands on no floor: add it to the table", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			switch to := floor(imp); {
			case testOnly(imp):
				t.Errorf("%s imports %s, which is for tests", p.ImportPath, imp)
			case to < 0:
				t.Errorf("%s imports %s, which stands on no floor", p.ImportPath, imp)
			case to >= on:
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, imp)
			}
		}
	}
}

func TestNoTestLibrariesInTheProduct(t *testing.T) {
	args := []string{"-deps"}
	for _, f := range list(t, module+"pkg/...") {
		if !testOnly(f.ImportPath) {
			args = append(args, f.ImportPath)
		}
	}
	for _, p := range list(t, args...) {
		for _, not := range []string{"github.com/stretchr/testify", "github.com/google/go-containerregistry", "testing"} {
			if p.ImportPath == not || strings.HasPrefix(p.ImportPath, not+"/") && not != "testing" {
				t.Errorf("the product depends on %s", p.ImportPath)
			}
		}
	}
}
