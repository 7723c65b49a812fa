package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxSkew is the number of minor versions that a kubelet may be older than its API server
// (https://kubernetes.io/releases/version-skew-policy/#kubelet).
const maxSkew = 3

// Kubelet is a kubelet that imagepin is tested with.
type Kubelet struct {
	// Minor is the version without the v and without the number of the patch.
	Minor string
	// Version is the version with both.
	Version string
	// Dir is the directory of kubelet, below the directory of all binaries. It is empty for the kubelet of the API server's
	// version.
	Dir string
}

var requiredKubernetes = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v1\.(\d+)\.\d+)`)

// Kubelets returns the kubelets of the repository at root: that of integration/kubelet/binaries, with the version of the
// API server, and those of the modules below integration/kubelet/versions. The newest is first.
func Kubelets(root string) ([]Kubelet, error) {
	dir := filepath.Join(root, "integration", "kubelet")
	modules, err := filepath.Glob(filepath.Join(dir, "versions", "*.*", "go.mod"))
	if err != nil {
		return nil, err
	}
	slices.Reverse(modules)
	var all []Kubelet
	server := 0
	for i, module := range append([]string{filepath.Join(dir, "binaries", "go.mod")}, modules...) {
		text, err := os.ReadFile(module)
		if err != nil {
			return nil, err
		}
		found := requiredKubernetes.FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("%s requires no Kubernetes", module)
		}
		n, err := strconv.Atoi(string(found[2]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", module, err)
		}
		k := Kubelet{Minor: fmt.Sprintf("1.%d", n), Version: string(found[1])}
		if i == 0 {
			server = n
		} else {
			if name := filepath.Base(filepath.Dir(module)); name != k.Minor {
				return nil, fmt.Errorf("%s requires Kubernetes %s", module, k.Version)
			}
			if n >= server || n < server-maxSkew {
				return nil, fmt.Errorf("kubelet %s does not work with an API server 1.%d, or is its own", k.Version, server)
			}
			k.Dir = "kubernetes-" + k.Minor
		}
		all = append(all, k)
	}
	return all, nil
}

// KubeletTable returns the table of kubelets.
func KubeletTable(all []Kubelet) string {
	var b strings.Builder
	b.WriteString("| kubelet | API server | tests |\n|---|---|---|\n")
	for i, k := range all {
		tests := "`make test-kubelets`"
		if i == 0 {
			tests = "all"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k.Version[1:], all[0].Version[1:], tests)
	}
	return b.String()
}
