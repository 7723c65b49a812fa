package manifests

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUpdates changes an ImagePin with all permissions: only the digest can change.
func TestUpdates(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	byNode := claim(custom, "vm1", "virt-launcher-vm1-x2x4z")
	byPerson := claim(custom, "vm2", "any", func(p *v1alpha1.ImagePin) { p.Spec.By = nil })
	for _, p := range []*v1alpha1.ImagePin{byNode, byPerson} {
		api.must(t, "POST", pinPath(ns, ""), p, p)
	}
	const image, owner, by = "image is immutable", "owner is immutable", "by is immutable"
	for _, c := range []struct {
		name    string
		pin     *v1alpha1.ImagePin
		change  func(*v1alpha1.ImagePinSpec)
		refused string
	}{
		{"the digest", byNode, func(s *v1alpha1.ImagePinSpec) { s.Digest = newDigest }, ""},
		{"the digest of a person's", byPerson, func(s *v1alpha1.ImagePinSpec) { s.Digest = newDigest }, ""},
		{"the image", byNode, func(s *v1alpha1.ImagePinSpec) { s.Image += "1" }, image},
		{"the owner's API version", byNode, func(s *v1alpha1.ImagePinSpec) { s.Owner.APIVersion = "kubevirt.io/v2" }, owner},
		{"the owner's kind", byNode, func(s *v1alpha1.ImagePinSpec) { s.Owner.Kind += "s" }, owner},
		{"the owner's name", byNode, func(s *v1alpha1.ImagePinSpec) { s.Owner.Name += "0" }, owner},
		{"the owner's UID", byNode, func(s *v1alpha1.ImagePinSpec) { s.Owner.UID += "0" }, owner},
		{"the owner's revision", byNode, func(s *v1alpha1.ImagePinSpec) { s.Owner.Revision = "5f6b" }, owner},
		{"the node", byNode, func(s *v1alpha1.ImagePinSpec) { s.By.Node = n2 }, by},
		{"the pod", byNode, func(s *v1alpha1.ImagePinSpec) { s.By.Pod += "0" }, by},
		{"the pod's UID", byNode, func(s *v1alpha1.ImagePinSpec) { s.By.PodUID += "0" }, by},
		{"no claimer", byNode, func(s *v1alpha1.ImagePinSpec) { s.By = nil }, by},
		{"a claimer of a person's", byPerson, func(s *v1alpha1.ImagePinSpec) { s.By = byNode.Spec.By }, by},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := c.pin.DeepCopy()
			c.change(&changed.Spec)
			err := api.Do(testkit.Context(t), "PUT", pinPath(ns, c.pin.Name)+dryRun, changed, nil)
			wantInvalid(t, err, c.refused)
		})
	}
}

// TestValidation creates ImagePins with all permissions: the CRD has the limits of each field.
func TestValidation(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	for _, c := range []struct {
		name    string
		change  func(*v1alpha1.ImagePinSpec)
		refused string
	}{
		{"a port", func(s *v1alpha1.ImagePinSpec) { s.Image = "localhost:5000/web:v7" }, ""},
		{"an IPv6 address", func(s *v1alpha1.ImagePinSpec) { s.Image = "[::1]:5000/web:v7" }, ""},
		{"no tag", func(s *v1alpha1.ImagePinSpec) { s.Image = "localhost:5000/web" }, "spec.image"},
		{"no host", func(s *v1alpha1.ImagePinSpec) { s.Image = "web:v7" }, "spec.image"},
		{"a digest in the image", func(s *v1alpha1.ImagePinSpec) { s.Image += "@" + digest }, "spec.image"},
		{"a space", func(s *v1alpha1.ImagePinSpec) { s.Image = "localhost/web app:v7" }, "spec.image"},
		{"a tag of 129 characters", func(s *v1alpha1.ImagePinSpec) { s.Image = "localhost/web:" + strings.Repeat("v", 129) }, "spec.image"},
		{"a long image", func(s *v1alpha1.ImagePinSpec) { s.Image = "localhost/" + strings.Repeat("w", 500) + ":v7" }, "spec.image"},
		{"SHA-384", func(s *v1alpha1.ImagePinSpec) { s.Digest = "sha384:" + strings.Repeat("0", 96) }, ""},
		{"SHA-512", func(s *v1alpha1.ImagePinSpec) { s.Digest = "sha512:" + strings.Repeat("0", 128) }, ""},
		{"a short digest", func(s *v1alpha1.ImagePinSpec) { s.Digest = digest[:70] }, "spec.digest"},
		{"a digest in capitals", func(s *v1alpha1.ImagePinSpec) { s.Digest = strings.ToUpper(digest) }, "spec.digest"},
		{"another algorithm", func(s *v1alpha1.ImagePinSpec) { s.Digest = "md5:" + strings.Repeat("0", 32) }, "spec.digest"},
		{"no API version", func(s *v1alpha1.ImagePinSpec) { s.Owner.APIVersion = "" }, "spec.owner.apiVersion"},
		{"no kind", func(s *v1alpha1.ImagePinSpec) { s.Owner.Kind = "" }, "spec.owner.kind"},
		{"no owner name", func(s *v1alpha1.ImagePinSpec) { s.Owner.Name = "" }, "spec.owner.name"},
		{"a long owner name", func(s *v1alpha1.ImagePinSpec) { s.Owner.Name = strings.Repeat("o", 254) }, "spec.owner.name"},
		{"no owner UID", func(s *v1alpha1.ImagePinSpec) { s.Owner.UID = "" }, "spec.owner.uid"},
		{"a long revision", func(s *v1alpha1.ImagePinSpec) { s.Owner.Revision = strings.Repeat("r", 64) }, "spec.owner.revision"},
		{"no node", func(s *v1alpha1.ImagePinSpec) { s.By.Node = "" }, "spec.by.node"},
		{"no pod", func(s *v1alpha1.ImagePinSpec) { s.By.Pod = "" }, "spec.by.pod"},
		{"no pod UID", func(s *v1alpha1.ImagePinSpec) { s.By.PodUID = "" }, "spec.by.podUID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := web(func(p *v1alpha1.ImagePin) { c.change(&p.Spec) })
			err := api.Do(testkit.Context(t), "POST", pinPath(ns, "")+dryRun, p, nil)
			wantInvalid(t, err, c.refused)
		})
	}
}

// wantInvalid fails the test unless the CRD has refused a request with a message that names what, or has permitted it if
// what is empty.
func wantInvalid(t *testing.T, err error, what string) {
	t.Helper()
	switch {
	case what == "" && err != nil:
		t.Errorf("got %v, want it to be permitted", err)
	case what != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), what)):
		t.Errorf("got error %v, want it to be invalid, because of %s", err, what)
	}
}
