package command

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/drift"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestPinName(t *testing.T) {
	for arg, want := range map[string]string{
		"web.0123456789": "web.0123456789", "imagepin/web.1": "web.1", "imagepins/web.1": "web.1", "ImagePin/web.1": "web.1",
		"imagepins.imagepin.io/web.1": "web.1", "imagepins.v1alpha1.imagepin.io/web.1": "web.1",
		"deployment/web": "", "imagepins.example.com/web.1": "", "imagepinsets/web": "",
	} {
		if name, ok := pinName(arg); ok != (want != "") || ok && name != want {
			t.Errorf("%s: got %q, %v, want %q", arg, name, ok, want)
		}
	}
}

func TestParsePinned(t *testing.T) {
	for _, tc := range []struct {
		args          []string
		image, digest string // empty for an error
	}{
		{[]string{"shop/web:v7@" + digestA}, "docker.io/shop/web:v7", digestA},
		{[]string{"shop/web:v7", digestA}, "docker.io/shop/web:v7", digestA},
		{[]string{"nginx", digestA}, "docker.io/library/nginx:latest", digestA},
		{[]string{"localhost:5000/web:v7@" + digestA}, "localhost:5000/web:v7", digestA},
		{[]string{"shop/web:v7"}, "", ""},
		{[]string{"shop/web@" + digestA}, "", ""},
		{[]string{"shop/web:v7@" + digestA, digestB}, "", ""},
		{[]string{"shop/web:v7", "latest"}, "", ""},
		{[]string{"shop/web:v7", "md5:d41d8cd98f00b204e9800998ecf8427e"}, "", ""},
		{[]string{"Shop", digestA}, "", ""},
	} {
		image, d, err := parsePinned(tc.args)
		if (err != nil) != (tc.image == "") || image != tc.image || d.String() != tc.digest {
			t.Errorf("%v: got %s, %s, %v, want %s, %s", tc.args, image, d, err, tc.image, tc.digest)
		}
	}
}

func TestList(t *testing.T) {
	names := []string{"n1", "n2", "n3", "n4"}
	for shown, want := range map[int]string{4: "n1,n2,n3,n4", 5: "n1,n2,n3,n4", 3: "n1,n2,n3 + 1 more..."} {
		if got := list(names, shown); got != want {
			t.Errorf("%d: got %q, want %q", shown, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[string]string{digestA: "aaaaaaaaaaaa", "sha512:" + strings.Repeat("b", 128): "bbbbbbbbbbbb", "other": "other", "": ""} {
		if got := short(d); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}

func TestWriteManifests(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files := fstest.MapFS{
		"kustomization.yaml": file("kind: Kustomization\nresources:\n  - b.yaml\n  - a.yaml\n"),
		"a.yaml":             file("a: 1\n---\na: 2\n"), "b.yaml": file("---\nb: 1"), "other.yaml": file("c: 1"),
	}
	var out strings.Builder
	if err := writeManifests(&out, files); err != nil || out.String() != "---\n# b.yaml\nb: 1\n---\n# a.yaml\na: 1\n---\na: 2\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	delete(files, "a.yaml")
	if err := writeManifests(&out, files); err == nil {
		t.Error("no error for a resource that is not embedded")
	}
}

// Two revisions of one object have one name, and objects of two namespaces have two.
func TestDriftNames(t *testing.T) {
	owner := func(namespace, apiVersion, kind, name, revision string) drift.Owner {
		return drift.Owner{Namespace: namespace, Owner: v1alpha1.Owner{APIVersion: apiVersion, Kind: kind, Name: name, Revision: revision}}
	}
	owners := []drift.Owner{
		owner("a", "apps/v1", "StatefulSet", "db", "db-1"), owner("a", "example.com/v1", "StatefulSet", "db", "db-1"),
		owner("a", "apps/v1", "StatefulSet", "db", "db-2"), owner("a", "v1", "ReplicationController", "old", ""),
		owner("b", "apps/v1", "StatefulSet", "db", "db-1"),
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	o := &driftOptions{env: &env{IOStreams: streams}, out: newOutput(&cobra.Command{}, dataFlags(), "name")}
	o.out.format = "name"
	const want = "statefulset.apps/db\nstatefulset.example.com/db\nreplicationcontroller/old\nstatefulset.apps/db\n"
	if err := o.print(&drift.Report{Owners: owners}, owners); err != nil || out.String() != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// A change applies to containers that are created after recheck, not to pods.
func TestHelpOfChanges(t *testing.T) {
	root := New(genericiooptions.NewTestIOStreamsDiscard())
	for _, command := range []string{"refresh", "set", "seed", "rm"} {
		cmd, _, err := root.Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		help := strings.Join(strings.Fields(cmd.Short+" "+cmd.Long), " ")
		if n := strings.Count(help, `After at most "recheck" (a setting of nodes, 1 minute by default)`); n != 1 {
			t.Errorf("%s: the help has recheck %d times, want once", command, n)
		}
		for _, wrong := range []string{"pod that starts", "Pods that start", "Running pods keep", "starts the next pod"} {
			if strings.Contains(help, wrong) {
				t.Errorf("%s: the help has %q", command, wrong)
			}
		}
		if !strings.Contains(help, "container that a node creates") || !strings.Contains(help, "also in a running pod") {
			t.Errorf("%s: the help does not name the next container", command)
		}
	}
}
