package imagerefs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

const kafka = `apiVersion: kafka.example/v1
kind: Kafka
spec: {kafka: {image: k:1}, sidecars: [{image: s:1}, {image: s:2}], extra: [e:1], baseImages: [f:1, plain], sidecarImage: registry.example/x, logo: https://example.com/image:1}
---
apiVersion: v1
kind: List
items:
- {apiVersion: kafka.example/v1, kind: Kafka, spec: {kafka: {image: k:2}, image: plain, size: 1, template: {spec: {containers: [{image: c:1}]}}}}
- {apiVersion: v1, kind: ConfigMap, data: {image: no:1}}
`

// TestFields checks which images of custom resources are found, and which are named as skipped with the field that finds them.
func TestFields(t *testing.T) {
	read := func(fields ...string) (refs, skipped []string, _ error) {
		t.Helper()
		o := Options{Skipped: func(s Skipped) { skipped = append(skipped, s.Text+" "+s.Field) }}
		for _, text := range fields {
			f, err := ParseField(text)
			if err != nil || f.String() != text {
				t.Fatalf("%s: got %s, %v", text, f, err)
			}
			o.Fields = append(o.Fields, f)
		}
		all, err := o.Read(strings.NewReader(kafka), Stdin)
		for _, r := range all {
			refs = append(refs, r.Text)
		}
		return refs, skipped, err
	}
	refs, skipped, err := read()
	want := []string{"f:1 Kafka:spec.baseImages[*]", "k:1 Kafka:spec.kafka.image", "registry.example/x Kafka:spec.sidecarImage", "s:1 Kafka:spec.sidecars[*].image", "s:2 Kafka:spec.sidecars[*].image", "k:2 Kafka:spec.kafka.image"}
	if err != nil || !slices.Equal(refs, []string{"c:1"}) || !slices.Equal(skipped, want) {
		t.Errorf("without fields: %q, skipped %q, %v", refs, skipped, err)
	}
	refs, skipped, err = read("Kafka:spec.kafka.image", "Kafka:spec.sidecarImage", "Kafka:spec.sidecars[*].image", "Kafka:spec.extra[*]", "Kafka:spec.baseImages[*]")
	if err != nil || !slices.Equal(refs, []string{"k:1", "registry.example/x", "s:1", "s:2", "e:1", "f:1", "plain", "k:2", "c:1"}) || len(skipped) != 0 {
		t.Errorf("with fields: %q, skipped %q, %v", refs, skipped, err)
	}
	for _, field := range []string{"kafka:spec.kafka.image", "Kafka:spec.Image", "Kafka:spec.size.image", "Kafka:spec.kafka[*].image"} {
		if _, _, err := read(field); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "no resource has the field "+field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if _, _, err := read("Kafka:spec.size"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "not a text") {
		t.Errorf("a number: got %v", err)
	}
	for _, text := range []string{"", "Kafka", ":spec", "Kafka:", "Kafka:spec..image", "Kafka:spec[0].image", "Kafka:spec.a[*][*]", "Kafka:spec/image:x"} {
		if _, err := ParseField(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestKustomization checks that a kustomization is refused wherever it is, with the command that renders it.
func TestKustomization(t *testing.T) {
	dir := t.TempDir()
	overlay := filepath.Join(dir, "overlay")
	if err := os.Mkdir(overlay, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(overlay, "kustomization.yaml")
	for name, text := range map[string]string{
		filepath.Join(dir, "pod.yaml"):     "kind: Pod\nspec: {containers: [{image: a:1}]}\n",
		filepath.Join(overlay, "pod.yaml"): "kind: Pod\nspec: {containers: [{image: b:1}]}\n",
		file:                               "images: [{name: a, newTag: '2'}]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{dir, overlay, file} {
		_, err := (Options{}).Read(nil, name)
		if want := "kubectl kustomize " + overlay + " | imagepin lock -f -"; !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	const text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nimages: []\n"
	if _, err := (Options{}).Read(strings.NewReader(text), Stdin); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "standard input, document 1 has a kustomization") {
		t.Errorf("standard input: got %v", err)
	}
	renamed := write(t, dir, "renamed.yaml", text)
	if _, err := (Options{}).Read(nil, renamed); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), renamed+", document 1 has a kustomization") {
		t.Errorf("with another name: got %v", err)
	}
}
