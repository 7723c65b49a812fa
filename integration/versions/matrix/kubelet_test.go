package matrix

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKubelets(t *testing.T) {
	root := t.TempDir()
	write := func(module, text string) {
		t.Helper()
		path := filepath.Join(root, "integration/kubelet", module, "go.mod")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("binaries", "require (\n\tk8s.io/kubelet v0.37.2 // indirect\n\tk8s.io/kubernetes v1.37.2 // indirect\n)\n")
	write("versions/1.34", "require (\n\tk8s.io/kubernetes v1.34.4\n)\n")
	write("versions/1.36", "tool k8s.io/kubernetes/cmd/kubelet\n\nrequire (\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n")
	got, err := Kubelets(root)
	want := []Kubelet{
		{Minor: "1.37", Version: "v1.37.2"},
		{Minor: "1.36", Version: "v1.36.3", Dir: "kubernetes-1.36"},
		{Minor: "1.34", Version: "v1.34.4", Dir: "kubernetes-1.34"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	const table = "| kubelet | API server | tests |\n|---|---|---|\n| 1.37.2 | 1.37.2 | all |\n" +
		"| 1.36.3 | 1.37.2 | `make test-kubelets` |\n| 1.34.4 | 1.37.2 | `make test-kubelets` |\n"
	if got := KubeletTable(got); got != table {
		t.Errorf("got table\n%swant\n%s", got, table)
	}

	for text, want := range map[string]string{
		"module none\n": "requires no Kubernetes",
		"require (\n\tk8s.io/kubernetes v1.35.1\n": "requires Kubernetes v1.35.1",
	} {
		write("versions/1.34", text)
		if _, err := Kubelets(root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("module with %q: got %v, want an error with %q", text, err, want)
		}
	}
	write("versions/1.34", "require (\n\tk8s.io/kubernetes v1.34.4\n")
	if got, err := Kubelets(root); err != nil || !slices.Equal(got, want) {
		t.Errorf("with the old module again: got %+v, %v, want %+v", got, err, want)
	}
	for _, server := range []string{"v1.36.9", "v1.38.0"} {
		write("binaries", "require (\n\tk8s.io/kubernetes "+server+"\n")
		if _, err := Kubelets(root); err == nil || !strings.Contains(err.Error(), "does not work with") {
			t.Errorf("API server %s: got %v, want an error", server, err)
		}
	}
}

// TestRepository checks that the tables in RELEASES.md are those of the modules.
func TestRepository(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	doc, err := os.ReadFile(filepath.Join(root, "RELEASES.md"))
	if err != nil {
		t.Fatal(err)
	}
	kubelets, err := Kubelets(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Insert(string(doc), BeginKubelets, KubeletTable(kubelets)); err != nil || got != string(doc) {
		t.Errorf("the table of kubelets in RELEASES.md is out of date: run make versions-table (%v)", err)
	}
}
