package command

import (
	"strings"
	"testing"
	"testing/fstest"
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
