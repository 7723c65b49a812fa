package schemas

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	scrape "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const manifests = "../../../contrib/kubernetes/cluster/"

// TestManifests decodes each object of the manifests into the type of its kind, and again with an unknown field.
func TestManifests(t *testing.T) {
	decoder := strict(t)
	files, err := filepath.Glob(manifests + "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue // It is no object of the API.
		}
		for _, d := range documents(t, file) {
			o, kind, err := decoder.Decode(d, nil, nil)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			t.Logf("%s: %s decoded as %T", name, kind, o)
			unknown := bytes.Replace(d, []byte("\nmetadata:\n"), []byte("\nmetadata:\n  nmae: unknown\n"), 1)
			if _, _, err := decoder.Decode(unknown, nil, nil); !runtime.IsStrictDecodingError(err) {
				t.Errorf("%s, %s with an unknown field: got error %v, want a strict decoding error", name, kind, err)
			}
		}
	}
}

// strict returns a decoder that fails for unknown and duplicate fields.
func strict(t *testing.T) runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admission.AddToScheme, apiextensions.AddToScheme, apps.AddToScheme, batch.AddToScheme, core.AddToScheme,
		flowcontrol.AddToScheme, monitoring.AddToScheme, rbac.AddToScheme, scrape.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// documents returns the documents of a YAML file.
func documents(t *testing.T, file string) [][]byte {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b))); ; {
		d, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
}
