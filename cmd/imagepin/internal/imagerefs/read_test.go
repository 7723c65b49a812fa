package imagerefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// found lists references and their places.
func found(refs []Ref) []string {
	var all []string
	for _, r := range refs {
		all = append(all, r.Text+" "+r.Place.String())
	}
	return all
}

// fromStdin returns the references in a text.
func fromStdin(t *testing.T, text string) []string {
	t.Helper()
	refs, err := (Options{}).Read(strings.NewReader(text), Stdin)
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return found(refs)
}

// at returns a line of found for the first document of standard input.
func at(ref, path string) string { return ref + " standard input, document 1, " + path }

const spec = `{containers: [{name: a, image: a:1}, {name: none}], initContainers: [{image: b:1}], ephemeralContainers: [{image: c:1}],
  volumes: [{name: v, image: {reference: d:1}}, {name: e, image: {}}, {rbd: {image: disk}}]}`

// inSpec returns the lines of found for spec.
func inSpec(path string) []string {
	return []string{
		at("a:1", path+"containers[0].image"), at("b:1", path+"initContainers[0].image"),
		at("c:1", path+"ephemeralContainers[0].image"), at("d:1", path+"volumes[0].image.reference"),
	}
}

func TestWorkloads(t *testing.T) {
	for _, kind := range []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "Custom"} {
		text := "apiVersion: apps/v1\nkind: " + kind + "\nspec: {template: {spec: " + spec + "}}\n"
		if got := fromStdin(t, text); !slices.Equal(got, inSpec("spec.template.spec.")) {
			t.Errorf("%s: got %q", kind, got)
		}
	}
	for name, test := range map[string]struct{ text, path string }{
		"Pod":         {"kind: Pod\nspec: " + spec, "spec."},
		"CronJob":     {"kind: CronJob\nspec: {jobTemplate: {spec: {template: {spec: " + spec + "}}}}", "spec.jobTemplate.spec.template.spec."},
		"PodTemplate": {"kind: PodTemplate\ntemplate: {spec: " + spec + "}", "template.spec."},
		"List":        {"kind: List\nitems: [{kind: Pod, spec: " + spec + "}]", "items[0].spec."},
		"PodList":     {"kind: PodList\nitems: [{metadata: {}}, {spec: " + spec + "}]", "items[1].spec."},
		"custom":      {"kind: Rollout\nspec: {steps: [{job: {podSpec: " + spec + "}}]}", "spec.steps[0].job.podSpec."},
		"sequence":    {"- {kind: Pod, spec: " + spec + "}", "[0].spec."},
		"anchor":      {"kind: Pod\nx: &s {}\nspec: {<<: *s, containers: [{image: a:1}], initContainers: [{image: b:1}], ephemeralContainers: [{image: c:1}], volumes: [{image: {reference: d:1}}]}", "spec."},
	} {
		if got := fromStdin(t, test.text); !slices.Equal(got, inSpec(test.path)) {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestNoImages(t *testing.T) {
	for _, text := range []string{
		"", "---\n---\n", "# comment\n", "--- null\n", "kind: ConfigMap\ndata: {image: a:1}\n", "{}", "[]", "1: {2: 3}\n",
		"kind: CustomResourceDefinition\nspec: {default: {containers: [{image: a:1}]}}\n",
		"kind: List\nitems: [{kind: CustomResourceDefinition, spec: {default: {containers: [{image: a:1}]}}}]\n",
		"replicaCount: 1\nimage: {repository: a, tag: '1'}\n", "containers: none\n", "containers: [a, [b], null]\n",
	} {
		if got := fromStdin(t, text); len(got) > 0 {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func TestJSONAndDocuments(t *testing.T) {
	json := "{\n\t\"kind\": \"Pod\",\n\t\"spec\": {\"containers\": [{\"image\": \"a:1\"}]}\n}\n"
	want := at("a:1", "spec.containers[0].image")
	if got := fromStdin(t, json); !slices.Equal(got, []string{want}) {
		t.Errorf("got %q", got)
	}
	second := strings.NewReplacer("a:1", "b:1", "document 1", "document 2")
	for _, text := range []string{json + second.Replace(json), "---\nkind: Pod\nspec: {containers: [{image: a:1}]}\n---\n{kind: Pod, spec: {containers: [{image: b:1}, {image: a:1}]}}\n"} {
		if got := fromStdin(t, text); !slices.Equal(got, []string{want, second.Replace(want)}) {
			t.Errorf("got %q", got)
		}
	}
}

func TestCompose(t *testing.T) {
	text := "name: shop\nx-base: &base {image: 'a:1'}\nservices:\n  web: {<<: *base, ports: ['80:80']}\n  db: {image: b, volumes: ['data:/x', {type: image, source: c:1}, {type: bind, source: /x}]}\n  built: {build: .}\n  empty:\n"
	want := []string{at("b", "services.db.image"), at("c:1", "services.db.volumes[1].source"), at("a:1", "services.web.image")}
	if got := fromStdin(t, text); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLists(t *testing.T) {
	text := "\ufeff# images\n\nnginx:1.29 # web\r\nlocalhost:5000/a/b\t# c\n  redis  \nnginx:1.29\n"
	want := []string{"nginx:1.29 standard input, line 3", "localhost:5000/a/b standard input, line 4", "redis standard input, line 5"}
	if got := fromStdin(t, text); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInvalid(t *testing.T) {
	container := func(image string) string { return "kind: Pod\nspec: {containers: [{image: " + image + "}]}\n" }
	here := "standard input, document 1, spec.containers[0].image: "
	for _, test := range []struct {
		text   string
		reason imagepin.Reason
		want   string
	}{
		{container(`""`), imagepin.InvalidReference, here + "the image is empty"},
		{container("null"), imagepin.InvalidReference, here + "the image is empty"},
		{container("1.5"), imagepin.InvalidReference, here + "the image is not a text\nQuote it."},
		{container("{repository: a}"), imagepin.InvalidReference, here + "the image is not a text\nRender it first"},
		{container("UPPER"), imagepin.InvalidReference, here + `"UPPER": `},
		{container("'a '"), imagepin.InvalidReference, "Remove the space"},
		{container("'{{ .Values.image }}:{{ .Values.tag }}'"), imagepin.InvalidReference, "is a template\nRender it first: helm template"},
		{container("{{ .Values.image }}"), imagepin.InvalidRequest, "standard input, document 1 is a template"},
		{"{{- if .Values.x }}\nkind: Pod\n{{- end }}\n", imagepin.InvalidRequest, "standard input, document 1 is a template"},
		{"services: {a: {image: 'a:${TAG:-1}'}}\n", imagepin.InvalidReference, "services.a.image: \"a:${TAG:-1}\" has a variable\nReplace variables first: docker compose config"},
		{"kind: Pod\n---\na: [\n", imagepin.InvalidRequest, "standard input, document 2 is not YAML or JSON"},
		{"kind: Pod\nkind: Pod\n", imagepin.InvalidRequest, "already defined"},
		{"two words\n", imagepin.InvalidRequest, "standard input, document 1 is neither a manifest nor a list"},
		{"nginx:1.29\nUPPER\n", imagepin.InvalidReference, `standard input, line 2: "UPPER"`},
		{"services: {a: {image: '" + strings.Repeat("A", 5000) + "'}}\n", imagepin.InvalidReference, "services.a.image"},
	} {
		refs, err := (Options{}).Read(strings.NewReader(test.text), Stdin)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != test.reason || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), test.want) || len(err.Error()) > imagepin.MaxErrorText {
			t.Errorf("%q: got %v and %v, want %s with %q", test.text, found(refs), err, test.reason, test.want)
		}
	}
}

// TestAliases checks that a small document cannot expand to a large one.
func TestAliases(t *testing.T) {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 10))
	}
	if _, err := (Options{}).Read(strings.NewReader(text), Stdin); err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func pod(image string) string { return "kind: Pod\nspec: {containers: [{image: '" + image + "'}]}\n" }

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b/pod.yml", pod("b:1"))
	write(t, dir, "a.yaml", pod("a:1"))
	write(t, dir, "c.json", `{"spec": {"containers": [{"image": "c:1"}]}}`)
	write(t, dir, "list.txt", "d:1\n")
	write(t, dir, "README.md", "{{ no manifest")
	write(t, dir, ".git/x.yaml", "{{ no manifest")
	write(t, dir, ".hidden.yaml", "{{ no manifest")
	write(t, dir, "..data/e.yaml", pod("e:1"))
	// As in a mounted ConfigMap.
	if err := os.Symlink("..data/e.yaml", filepath.Join(dir, "e.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b", filepath.Join(dir, "f.yaml")); err != nil {
		t.Fatal(err)
	}
	refs, err := (Options{}).Read(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	image := ", document 1, spec.containers[0].image"
	want := []string{
		"a:1 " + dir + "/a.yaml" + image, "b:1 " + dir + "/b/pod.yml" + image, "c:1 " + dir + "/c.json, document 1, spec.containers[0].image",
		"e:1 " + dir + "/e.yaml" + image, "d:1 " + dir + "/list.txt, line 1",
	}
	if got := found(refs); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSeveralInputs(t *testing.T) {
	dir := t.TempDir()
	a, list := write(t, dir, "a.yaml", pod("a:1")), write(t, dir, "x.list", "b:1\na:1\n")
	refs, err := (Options{}).Read(strings.NewReader(pod("c:1")), list, Stdin, a)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"b:1 " + list + ", line 1", "a:1 " + list + ", line 2", at("c:1", "spec.containers[0].image")}
	if got := found(refs); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLinkOutOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	secret := write(t, dir, "secret.yaml", pod("a:1"))
	inside := filepath.Join(dir, "inside")
	write(t, inside, "good.yaml", pod("b:1"))
	if err := os.Symlink(secret, filepath.Join(inside, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	refs, err := (Options{}).Read(nil, inside)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(inside, "link.yaml")+": path escapes") || len(refs) != 1 {
		t.Errorf("got %q, %v", found(refs), err)
	}
}

// TestLinksToDirectories reads a directory with links to directories. Their files are read if they are in it, and missed otherwise:
// then Read fails.
func TestLinksToDirectories(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	write(t, inside, "sub/a.yaml", pod("a:1"))
	write(t, inside, ".hidden/b.yaml", pod("b:1"))
	write(t, dir, "outside/c.yaml", pod("c:1"))
	for link, to := range map[string]string{"again": "sub", "sub/loop": "..", "data.yaml": "sub"} {
		if err := os.Symlink(to, filepath.Join(inside, link)); err != nil {
			t.Fatal(err)
		}
	}
	linked := filepath.Join(dir, "linked")
	if err := os.Symlink("inside", linked); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{inside, linked} {
		if refs, err := (Options{}).Read(nil, name); err != nil || len(refs) != 1 {
			t.Errorf("%s: got %q, %v", name, found(refs), err)
		}
	}
	for _, to := range []string{"../outside", ".hidden", filepath.Join(dir, "outside")} {
		link := filepath.Join(inside, "link")
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		refs, err := (Options{}).Read(nil, inside)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), link+" is a symbolic link to a directory") || len(refs) != 1 {
			t.Errorf("link to %s: got %q, %v", to, found(refs), err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLimits(t *testing.T) {
	dir := t.TempDir()
	large := write(t, dir, "large.yaml", "a: "+strings.Repeat("x", MaxFile))
	names := []string{large, filepath.Join(dir, "absent")}
	_, err := (Options{}).Read(nil, names...)
	if err == nil || !strings.Contains(err.Error(), large+": the file has more than") || !strings.Contains(err.Error(), "absent: no such file") {
		t.Errorf("got %v, want both errors", err)
	}
	full := write(t, dir, "full.txt", "#"+strings.Repeat("x", MaxFile-1))
	_, err = (Options{}).Read(nil, append(slices.Repeat([]string{full}, MaxTotal/MaxFile), write(t, dir, "a.yaml", pod("a:1")))...)
	if err == nil || !strings.Contains(err.Error(), "a.yaml: all files have more than") {
		t.Errorf("got %v", err)
	}
	_, err = (Options{}).Read(strings.NewReader(strings.Repeat("UPPER\n", 1000)), Stdin)
	if err == nil || !strings.Contains(err.Error(), "more than 100 errors") || strings.Contains(err.Error(), "line 101:") {
		t.Errorf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{pod("a:1"), "services: {a: {image: b}}", "a:1 # x\n", `{"containers": [{"image": "a"}]}`, "1: 2\n? {a: b}\n: c\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		refs, err := (Options{}).Read(strings.NewReader(text), Stdin)
		for _, r := range refs {
			if r.Text == "" || r.Named == nil {
				t.Errorf("got %+v", r)
			}
		}
		var e *imagepin.Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("got %v", err)
		}
	})
}
