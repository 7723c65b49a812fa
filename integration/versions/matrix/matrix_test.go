package matrix

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRead(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"go.mod":                               "require (\n\tgithub.com/containerd/containerd/v2 v2.9.1\n)\n",
		"integration/versions/2.7/go.mod":      "require github.com/containerd/log v1.0.0\nrequire (\n\tgithub.com/containerd/containerd/v2 v2.7.3 // indirect\n)\n",
		"integration/versions/2.8/go.mod":      "require (\n\tgithub.com/containerd/containerd/api v1.0.0\n\tgithub.com/containerd/containerd/v2 v2.8.0 // indirect\n)\n",
		"integration/versions/matrix/go.sum":   "",
		"integration/versions/debian.txt":      "# suites\nbookworm refused\nforky works\n",
		"integration/versions/2.8/main/go.mod": "module other\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(root)
	want := []Containerd{
		{Name: "2.9.1", Version: "v2.9.1", Plugin: Works, Serve: Works},
		{Name: "2.8.0", Version: "v2.8.0", Dir: "containerd-2.8", Plugin: Works, Serve: Works},
		{Name: "2.7.3", Version: "v2.7.3", Dir: "containerd-2.7", Plugin: Works, Serve: Works},
		{Name: "Debian forky", Dir: "containerd-debian-forky", Plugin: Untested, Serve: Works},
		{Name: "Debian bookworm", Dir: "containerd-debian-bookworm", Plugin: Untested, Serve: Refused},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if err := os.WriteFile(filepath.Join(root, "integration/versions/2.7/go.mod"), []byte("module none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(root); err == nil {
		t.Errorf("got %+v from a module without containerd, want an error", got)
	}
	if got, err := readDebian("forky perhaps\n"); err == nil {
		t.Errorf("got %+v from an unknown outcome, want an error", got)
	}
}

func TestTable(t *testing.T) {
	all := []Containerd{{Name: "2.9.1", Plugin: Works, Serve: Works}, {Name: "Debian bookworm", Plugin: Untested, Serve: Refused}}
	read, err := Parse(Format(all))
	if err != nil || !slices.Equal(read, all) {
		t.Errorf("got %+v, %v, want %+v", read, err, all)
	}
	if _, err := Parse([]byte("half\tof it\n")); err == nil {
		t.Error("Parse accepts an incomplete line")
	}

	const want = "Before.\n\n<!-- make versions-table -->\n" +
		"| containerd | imagepin in it | `imagepin serve` beside it |\n|---|---|---|\n" +
		"| 2.9.1 | works | works |\n| Debian bookworm | - | refused |\n<!-- end -->\nAfter.\n"
	got, err := Insert("Before.\n\n"+BeginContainerds+"| old |\n"+end+"After.\n", BeginContainerds, Table(read))
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if again, err := Insert(got, BeginContainerds, Table(read)); err != nil || again != want {
		t.Errorf("second Insert: got %q, %v, want %q", again, err, want)
	}
	for _, doc := range []string{"no table\n", BeginContainerds, end + BeginContainerds, BeginKubelets + end} {
		if got, err := Insert(doc, BeginContainerds, "table"); err == nil {
			t.Errorf("Insert into %q: got %q, want an error", doc, got)
		}
	}
}
