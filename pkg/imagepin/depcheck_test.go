package imagepin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/imagepin/imagepin/"

// layers are the packages of this module from the lowest layer to the highest. A package imports only packages of lower
// layers.
var layers = [][]string{
	{"internal/upstream"},
	{"api/imagepin/v1", "api/v1alpha1", "internal/blobcache", "internal/failpoint", "internal/gcroots", "internal/gunzip", "internal/jsontext", "internal/similar", "internal/yamldoc", "pkg/imagepin/durable", "pkg/runtimeplatform", "pkg/imagepin/internal/blobtable", "pkg/imagepin/internal/errno", "pkg/imagepin/internal/family", "pkg/imagepin/internal/keyed", "pkg/imagepin/internal/order", "pkg/imagepin/internal/flight", "pkg/imagepin/internal/pause", "pkg/imagepin/internal/pieces", "pkg/imagepin/layerfiles", "pkg/imagepin/policy", "pkg/imagepin/verifier", "version"},
	{"pkg/imagepin"},
	{"pkg/imagepin/internal/blobs", "pkg/imagepin/guestpull"},
	{"pkg/imagepin/internal/lease", "pkg/imagepin/lock", "pkg/imagepin/pin", "pkg/imagepin/pin/cluster/kube"},
	{"pkg/imagepin/retain", "pkg/imagepin/bandwidth", "pkg/imagepin/pin/cluster", "pkg/imagepin/pin/pintest", "pkg/imagepin/bundle", "pkg/imagepin/applied"},
	{"pkg/imagepin/store", "pkg/imagepin/resolve", "pkg/imagepin/download"},
	{"pkg/imagepin/decide", "pkg/imagepin/config", "pkg/imagepin/health", "pkg/imagepin/usage", "pkg/imagepin/compare", "pkg/imagepin/replace", "pkg/imagepin/lookup", "pkg/imagepin/running"},
	{"pkg/imagepin/pull"},
	{"pkg/imagepin/reconcile", "pkg/imagepin/metrics", "pkg/imagepin/apply"},
	{"pkg/imagepin/cri", "pkg/imagepin/control"},
	{"pkg/imagepin/node", "pkg/imagepin/fleet"},
	{"plugins/imagepin", "plugins/imagepin/cluster", "plugins/imagepin/fleet", "pkg/imagepin/serve"},
}

// stableContainerd lists the parts of containerd that are stable according to its RELEASES.md.
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

// testOnly reports whether a package exists only for tests.
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
				t.Errorf("%s imports %s, which is not a stable part of containerd", p.ImportPath, imp)
			}
		}
	}
}

func TestNothingImportsUpwards(t *testing.T) {
	layer := func(pkg string) int {
		return slices.IndexFunc(layers, func(f []string) bool { return slices.Contains(f, strings.TrimPrefix(pkg, module)) })
	}
	for _, p := range list(t, module+"pkg/...", module+"plugins/...") {
		if testOnly(p.ImportPath) {
			continue
		}
		own := layer(p.ImportPath)
		if own < 0 {
			t.Errorf("%s is in no layer, add it to layers", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			switch to := layer(imp); {
			case testOnly(imp):
				t.Errorf("%s imports %s, which is a test package", p.ImportPath, imp)
			case to < 0:
				t.Errorf("%s imports %s, which is in no layer", p.ImportPath, imp)
			case to >= own:
				t.Errorf("%s imports %s, which is not in a lower layer", p.ImportPath, imp)
			}
		}
	}
}

// TestArchitectureNamesPackages checks that docs/architecture.md names every package.
func TestArchitectureNamesPackages(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list(t, module+"...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if !strings.Contains(string(doc), "\n    "+name+" ") {
			t.Errorf("docs/architecture.md does not name %s", name)
		}
	}
}

// TestParts checks that a build without a part does not have what only that part needs.
func TestParts(t *testing.T) {
	for part, only := range map[string][]string{
		"plugins/imagepin/cluster": {"k8s.io/client-go/rest", module + "pkg/imagepin/pin/cluster"},
		"plugins/imagepin/fleet":   {module + "pkg/imagepin/apply", module + "pkg/imagepin/applied", module + "pkg/imagepin/bundle"},
	} {
		for _, pkg := range []string{part, "plugins/imagepin", "pkg/imagepin/serve"} {
			deps := list(t, "-deps", module+pkg)
			for _, dep := range only {
				has := slices.ContainsFunc(deps, func(p listed) bool { return p.ImportPath == dep })
				if has != (pkg == part) {
					t.Errorf("%s depends on %s: %t", pkg, dep, has)
				}
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
		for _, forbidden := range []string{"github.com/stretchr/testify", "github.com/google/go-containerregistry", "testing"} {
			if p.ImportPath == forbidden || strings.HasPrefix(p.ImportPath, forbidden+"/") && forbidden != "testing" {
				t.Errorf("a package that is not for tests depends on %s", p.ImportPath)
			}
		}
	}
}
