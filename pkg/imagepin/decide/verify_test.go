package decide

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// taggedImages has one image under some references.
type taggedImages struct {
	Images
	root digest.Digest
	refs []string
}

func (i taggedImages) ByRoot(root digest.Digest) (all []imagepin.Entry) {
	for _, ref := range i.refs {
		if root == i.root {
			all = append(all, imagepin.Entry{Key: imagepin.Key{Ref: ref}})
		}
	}
	return all
}

// TestVerifyAs checks for which reference a container is verified.
func TestVerifyAs(t *testing.T) {
	const repository, tag, other = "registry.example/app", "registry.example/app:1", "registry.example/other:1"
	root := ocispec.Descriptor{Digest: digest.FromString("app")}
	byDigest := repository + "@" + root.Digest.String()
	image, err := reference.WithDigest(named(t, repository), root.Digest)
	noError(t, err)
	for name, c := range map[string]struct {
		rules []string // what is verified
		ref   string   // by which the pod names it; "" for an image ID
		in    bool     // in the repository of the image
		want  string
	}{
		"no rule":                            {nil, tag, true, ""},
		"the tag":                            {[]string{tag}, tag, true, tag},
		"a tag that pods of others name":     {[]string{"registry.example/app:2"}, tag, true, ""},
		"a digest":                           {[]string{"registry.example/**"}, byDigest, true, byDigest},
		"another repository, verified":       {[]string{other}, other, false, other},
		"another repository, image verified": {[]string{repository + "@*"}, other, false, byDigest},
		"an image ID":                        {[]string{"registry.example/**"}, "", false, byDigest},
		"an image ID, a tag is verified":     {[]string{"registry.example/app:*"}, "", false, tag},
		"an image ID, others are verified":   {[]string{other}, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var rules []policy.Rule
			for _, match := range c.rules {
				rules = append(rules, policy.Rule{Match: match, Verify: policy.VerifyRun})
			}
			p, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, rules, nil)
			noError(t, err)
			d := New(Config{Policy: func() *policy.Policy { return p }, Images: taggedImages{root: root.Digest, refs: []string{byDigest, tag}}})
			use, used := Use{Image: image, Root: root, InRepository: c.in}, Used{Root: root}
			if c.ref != "" {
				use.Ref = named(t, c.ref)
			}
			if c.in {
				used.Ref = use.Ref
			}
			got := ""
			if ref := d.verifyAs(use, used); ref != nil {
				got = ref.String()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestUnknownImageIsNotVerified refuses an image whose digest is not known, if a rule verifies it or could do so.
func TestUnknownImageIsNotVerified(t *testing.T) {
	p, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off},
		[]policy.Rule{{Match: "registry.example/**", Verify: policy.VerifyRun}}, nil)
	noError(t, err)
	off, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	noError(t, err)
	for name, want := range map[string]bool{
		"registry.example/app:1": true, "registry.example/app": true, "busybox": false,
		digest.FromString("id").String(): true, "0123456789ab": true, "not a reference": true,
	} {
		for _, rules := range []*policy.Policy{p, off} {
			d := New(Config{Policy: func() *policy.Policy { return rules }})
			_, err := d.Use(t.Context(), Use{Name: name})
			var known *imagepin.Error
			refused := errors.As(err, &known) && known.Reason == imagepin.ImageVerificationFailed && errdefs.IsPermissionDenied(err)
			if refused != (want && rules == p) || !refused && err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}
