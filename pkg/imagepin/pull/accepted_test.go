package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// rulesFor returns a decider that only has a rule for all references.
func rulesFor(t *testing.T, v policy.Verify) *decide.Decider {
	t.Helper()
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off, Verify: v}, nil, nil)
	noError(t, err)
	return decide.New(decide.Config{Policy: ctdtest.Always(rules)})
}

// program is an image verifier whose program can be replaced.
type program struct {
	version string
	failing error // of Version; may be nil
	refuses bool
	running func() // while it is called; may be nil
	calls   int
}

// Version implements versioned.
func (p *program) Version(context.Context) (string, error) { return p.version, p.failing }

// VerifyImage implements imageverifier.ImageVerifier.
func (p *program) VerifyImage(context.Context, string, ocispec.Descriptor) (*imageverifier.Judgement, error) {
	p.calls++
	if p.running != nil {
		p.running()
	}
	return &imageverifier.Judgement{OK: !p.refuses}, nil
}

// TestAccepted calls verifiers for containers, and checks when they are called again.
func TestAccepted(t *testing.T) {
	tag, err := reference.ParseNamed("registry.example/app:1")
	noError(t, err)
	other, err := reference.ParseNamed("registry.example/app:2")
	noError(t, err)
	root := ocispec.Descriptor{Digest: digest.FromString("one")}
	newer := ocispec.Descriptor{Digest: digest.FromString("two")}
	for name, c := range map[string]struct {
		rule   policy.Verify
		first  func(p *Puller, v *program) error // nil is VerifyRun
		change func(v *program)
		ref    reference.Named
		root   ocispec.Descriptor
		again  bool
	}{
		"the same image":                {again: false},
		"another reference":             {ref: other, again: true},
		"another digest":                {root: newer, again: true},
		"another program":               {change: func(v *program) { v.version = "2" }, again: true},
		"a program that cannot be read": {change: func(v *program) { v.failing = errors.New("gone") }, again: true},
		"a program that could not be read": {first: func(p *Puller, v *program) error {
			v.failing = errors.New("gone")
			defer func() { v.failing = nil }()
			return p.VerifyRun(t.Context(), tag, root)
		}, again: true},
		"a pull before":                        {first: func(p *Puller, _ *program) error { return p.maker.verify(t.Context(), tag, root) }, again: false},
		"a pull without a rule for containers": {rule: policy.VerifyPull, first: func(p *Puller, _ *program) error { return p.maker.verify(t.Context(), tag, root) }, again: true},
		"a program that is replaced meanwhile": {first: func(p *Puller, v *program) error {
			v.running = func() { v.version = "2" }
			return p.VerifyRun(t.Context(), tag, root)
		}, change: func(v *program) { v.version = "1" }, again: true},
		"refused": {first: func(p *Puller, v *program) error { v.refuses = true; return p.VerifyRun(t.Context(), tag, root) }, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := &program{version: "1"}
			if c.rule == "" {
				c.rule = policy.VerifyRun
			}
			p := NewPuller(nil, New(Config{Pins: rulesFor(t, c.rule), Settings: ctdtest.Always(&Settings{
				Verifiers: map[string]imageverifier.ImageVerifier{"program": v},
			})}), nil, nil)
			if c.first == nil {
				c.first = func(p *Puller, _ *program) error { return p.VerifyRun(t.Context(), tag, root) }
			}
			if err := c.first(p, v); errdefs.IsPermissionDenied(err) != v.refuses || err == nil == v.refuses {
				t.Errorf("got %v", err)
			}
			v.refuses, v.running = false, nil
			if c.change != nil {
				c.change(v)
			}
			if c.ref == nil {
				c.ref = tag
			}
			if c.root.Digest == "" {
				c.root = root
			}
			noError(t, p.VerifyRun(t.Context(), c.ref, c.root))
			if again := v.calls == 2; again != c.again || v.calls > 2 {
				t.Errorf("got %d calls, want another one: %v", v.calls, c.again)
			}
			v.refuses = true
			if err := p.Verify(t.Context(), c.ref, c.root); !errdefs.IsPermissionDenied(err) {
				t.Errorf("a pull after all: got %v, want that it is refused", err)
			}
		})
	}
}

// TestUnknownVerifierIsAlwaysCalled keeps nothing of a verifier that has no version.
func TestUnknownVerifierIsAlwaysCalled(t *testing.T) {
	tag, err := reference.ParseNamed("registry.example/app:1")
	noError(t, err)
	calls := 0
	unknown := verifierFunc(func(string, ocispec.Descriptor) (*imageverifier.Judgement, error) {
		calls++
		return &imageverifier.Judgement{OK: true}, nil
	})
	p := NewPuller(nil, New(Config{Pins: rulesFor(t, policy.VerifyRun), Settings: ctdtest.Always(&Settings{
		Verifiers: map[string]imageverifier.ImageVerifier{"known": &program{version: "1"}, "unknown": unknown},
	})}), nil, nil)
	for range 2 {
		noError(t, p.VerifyRun(t.Context(), tag, ocispec.Descriptor{Digest: digest.FromString("one")}))
	}
	if calls != 2 {
		t.Errorf("got %d calls, want 2", calls)
	}
}
