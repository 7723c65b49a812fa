package pull

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

type verifierFunc func(name string, desc ocispec.Descriptor) (*imageverifier.Judgement, error)

func (f verifierFunc) VerifyImage(_ context.Context, name string, desc ocispec.Descriptor) (*imageverifier.Judgement, error) {
	return f(name, desc)
}

// TestVerifyIsMerged calls a verifier once for concurrent questions about one reference and digest, and again for later
// ones.
func TestVerifyIsMerged(t *testing.T) {
	roots := []ocispec.Descriptor{{Digest: digest.FromString("a")}, {Digest: digest.FromString("b")}}
	ref, err := reference.ParseNamed("registry.example/app:1")
	noError(t, err)
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var calls atomic.Int32
		blocks := verifierFunc(func(string, ocispec.Descriptor) (*imageverifier.Judgement, error) {
			calls.Add(1)
			<-answer
			return &imageverifier.Judgement{Reason: "nobody signed it"}, nil
		})
		p := NewPuller(nil, &Maker{config: Config{Pins: rulesFor(t, policy.VerifyPull), Settings: ctdtest.Always(&Settings{
			Verifiers: map[string]imageverifier.ImageVerifier{"blocks": blocks},
		})}}, nil, nil)
		var callers sync.WaitGroup
		for _, root := range append(roots, roots...) {
			callers.Go(func() {
				if err := p.Verify(t.Context(), ref, root); !errdefs.IsPermissionDenied(err) {
					t.Errorf("got %v, want ImageVerificationFailed", err)
				}
			})
		}
		synctest.Wait()
		close(answer)
		callers.Wait()
		if calls.Load() != 2 {
			t.Errorf("got %d calls for two digests, want 2", calls.Load())
		}
		if err := p.Verify(t.Context(), ref, roots[0]); !errdefs.IsPermissionDenied(err) || calls.Load() != 3 {
			t.Errorf("got %v after %d calls, want another verdict", err, calls.Load())
		}
		noError(t, p.Shutdown(t.Context()))
		if err := p.Verify(t.Context(), ref, roots[0]); !errdefs.IsFailedPrecondition(err) || calls.Load() != 3 {
			t.Errorf("after Shutdown: got %v after %d calls", err, calls.Load())
		}
	})
}

func TestVerify(t *testing.T) {
	const ref = "registry.example/app:1"
	root := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("root"), Size: 4}
	var called []string
	verifier := func(who string, ok bool, err error) imageverifier.ImageVerifier {
		return verifierFunc(func(name string, desc ocispec.Descriptor) (*imageverifier.Judgement, error) {
			if name != ref || desc.Digest != root.Digest {
				t.Errorf("%s was called with %s, %s", who, name, desc.Digest)
			}
			called = append(called, who)
			if err != nil {
				return nil, err
			}
			return &imageverifier.Judgement{OK: ok, Reason: "because of " + who}, nil
		})
	}
	broken := errors.New("no answer")
	for name, c := range map[string]struct {
		verifiers map[string]imageverifier.ImageVerifier
		called    []string
		text      string
	}{
		"none":       {nil, nil, ""},
		"all allow":  {map[string]imageverifier.ImageVerifier{"b": verifier("b", true, nil), "a": verifier("a", true, nil)}, []string{"a", "b"}, ""},
		"one blocks": {map[string]imageverifier.ImageVerifier{"b": verifier("b", false, nil), "a": verifier("a", true, nil), "c": verifier("c", true, nil)}, []string{"a", "b"}, "because of b"},
		"one fails":  {map[string]imageverifier.ImageVerifier{"a": verifier("a", true, broken)}, []string{"a"}, "could not verify"},
	} {
		t.Run(name, func(t *testing.T) {
			called = nil
			err := verify(t.Context(), c.verifiers, ref, root)
			if !slices.Equal(called, c.called) {
				t.Errorf("called verifiers %v, want %v", called, c.called)
			}
			if c.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.ImageVerificationFailed || !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want reason ImageVerificationFailed with %q", err, c.text)
			}
		})
	}
}
