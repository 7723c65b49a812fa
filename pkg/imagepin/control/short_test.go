package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/lookup"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	app  = "registry.example/shop/app:v1"
	tool = "registry.example/shop/tool:v1"
	shop = "registry.example/shop/app"
)

// hex returns a digest that begins with a text.
func hex(begin string) digest.Digest {
	return digest.NewDigestFromEncoded(digest.SHA256, begin+strings.Repeat("0", 64-len(begin)))
}

var (
	appRoot, appManifest, appID    = hex("aaaaaaaaaaaa1"), hex("bbbbbbbbbbbb1"), hex("cccccccccccc1")
	toolRoot, toolManifest, toolID = hex("aaaaaaaaaaaa2"), hex("bbbbbbbbbbbb2"), hex("cccccccccccc2")
	formerRoot, drifted            = hex("dddddddddddd1"), hex("eeeeeeeeeeee1")
)

// images has the images of a node.
type images struct{ entries []imagepin.Entry }

func (i images) Images() (all []store.Image) {
	for _, e := range i.entries {
		all = append(all, store.Image{ID: e.ImageID, Entries: []imagepin.Entry{e}})
	}
	return all
}

func (i images) Get(imagepin.Key) (imagepin.Entry, bool) { return imagepin.Entry{}, false }

// Find finds references and image IDs without an algorithm.
func (images) Damaged() []store.Damaged { return nil }

func (images) FindDamaged(string) []store.Damaged { return nil }

func (i images) Find(name string) (found []imagepin.Entry) {
	for _, e := range i.entries {
		if e.Ref == name || strings.HasPrefix(e.ImageID.Encoded(), name) {
			found = append(found, e)
		}
	}
	return found
}

// pins has one pin.
type pins struct{ pin pin.Pin }

func (p *pins) List() []pin.Pin { return []pin.Pin{p.pin} }

func (p *pins) Scopes(ref string) []pin.Pin {
	if ref != p.pin.Ref {
		return nil
	}
	return p.List()
}

func (p *pins) Remove(_ context.Context, id pin.ID) (pin.Pin, error) {
	if id != p.pin.ID {
		return pin.Pin{}, errdefs.ErrNotFound
	}
	return p.pin, nil
}

func (p *pins) Check(context.Context) (int, []pin.Finding, error)   { return 0, nil, nil }
func (p *pins) Repair(context.Context, pin.Finding) (string, error) { return "", nil }

// decider records the pins that are set.
type decider struct{ set *decide.SetPin }

func (d *decider) Rule(ref string) policy.Rule { return policy.Rule{Match: ref} }

func (d *decider) Resolve(context.Context, reference.Named, resolve.Credential) (resolve.Resolved, error) {
	return resolve.Resolved{}, errors.New("not used")
}

func (d *decider) Preview(context.Context, decide.Request, policy.Scope) (decide.Verdict, policy.Rule, error) {
	return decide.Verdict{}, policy.Rule{}, errors.New("not used")
}

func (d *decider) SetPin(_ context.Context, s decide.SetPin) (pin.Pin, digest.Digest, error) {
	d.set = &s
	return pin.Pin{ID: pin.ID{Scope: s.Scope, Ref: s.Ref.String()}}, "", nil
}

func (d *decider) IgnoredAnnotations(string, policy.Pod) []string { return nil }

func (d *decider) UndoPin(context.Context, reference.Named, policy.Scope, resolve.Credential) (pin.Pin, digest.Digest, error) {
	return pin.Pin{}, "", errors.New("not used")
}

// newServer returns a server for a node with two images and a pin.
func newServer(t *testing.T) (*Server, *decider) {
	t.Helper()
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "native"}}, runtimeplatform.Host{})
	if err != nil {
		t.Fatal(err)
	}
	entry := func(ref string, root, manifest, id digest.Digest) imagepin.Entry {
		return imagepin.Entry{Key: imagepin.Key{Ref: ref}, Root: ocispec.Descriptor{Digest: root}, Manifest: manifest, ImageID: id}
	}
	d := &decider{}
	return New(Config{
		Images: images{[]imagepin.Entry{
			entry(app, appRoot, appManifest, appID), entry(shop+"@"+appRoot.String(), appRoot, appManifest, appID),
			entry(tool, toolRoot, toolManifest, toolID),
		}},
		Lookups: lookup.New(lookup.Config{}),
		Pins: &pins{pin.Pin{
			ID: pin.ID{Scope: policy.NodeScope, Ref: app}, Root: ocispec.Descriptor{Digest: appRoot},
			History: []pin.Change{{Digest: formerRoot}}, Drift: &pin.Drift{Digest: drifted},
		}},
		Decider:   d,
		Runtimes:  func() *runtimeplatform.Set { return runtimes },
		Namespace: "k8s.io",
		Guard:     func(_ context.Context, _ string, call func() error) error { return call() },
		Recover:   func(_ context.Context, _ string, call func() error) error { return call() },
		Uninstall: func(context.Context, bool) (*api.UninstallResponse, error) { return &api.UninstallResponse{}, nil },
	}), d
}

// wantError fails the test unless err is an imagepin.Error with a reason, and has the words in its text.
func wantError(t *testing.T, err error, reason imagepin.Reason, words ...string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("got error %v, want %s", err, reason)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got error %q, want %q in it", err, w)
		}
	}
}

// TestShortDigestOfAPin pins to a digest of which the operator gives the beginning.
func TestShortDigestOfAPin(t *testing.T) {
	for text, want := range map[string]digest.Digest{
		"aaaaaaaaaaaa": appRoot, "sha256:aaaaaaaaaaaa1": appRoot, "bbbbbbbbbbbb": appManifest, "dddddddddddd": formerRoot,
		"eeeeeeeeeeee": drifted, toolRoot.String(): toolRoot, toolRoot.Encoded()[:13]: "",
		"cccccccccccc1": "", // an image ID is not a digest in a registry
	} {
		s, d := newServer(t)
		_, err := s.SetPin(t.Context(), &api.SetPinRequest{Ref: app, Digest: text})
		if want == "" {
			wantError(t, err, imagepin.InvalidRequest, `digest "`+text+`"`, "no digest of "+shop+" on this node begins with it", appRoot.String())
			continue
		}
		if err != nil || d.set.Digest != want {
			t.Errorf("%s: got %v (%v), want %s", text, d.set, err, want)
		}
	}
	s, d := newServer(t)
	for _, text := range []string{"aaaaaaaaaaa", "sha256:abc", "latest", "AAAAAAAAAAAA", ""} {
		_, err := s.SetPin(t.Context(), &api.SetPinRequest{Ref: app, Digest: text})
		wantError(t, err, imagepin.InvalidRequest, `digest "`+text+`"`)
	}
	s.config.Images = images{append(s.config.Images.(images).entries, imagepin.Entry{Key: imagepin.Key{Ref: app}, Root: ocispec.Descriptor{Digest: toolRoot}})}
	_, err := s.SetPin(t.Context(), &api.SetPinRequest{Ref: app, Digest: "aaaaaaaaaaaa"})
	wantError(t, err, imagepin.InvalidRequest, "several digests begin with it", appRoot.String(), toolRoot.String())
	if d.set != nil {
		t.Errorf("pinned to %v", d.set)
	}
}

// TestShortDigestAsReference finds the reference of a digest.
func TestShortDigestAsReference(t *testing.T) {
	for text, want := range map[string]string{
		app: app, "busybox": "busybox", "cccccccccccc1": app, appID.String(): app, toolManifest.Encoded(): tool, "sha256:aaaaaaaaaaaa2": tool,
		"dddddddddddd": app, shop + "@aaaaaaaaaaaa": shop + "@" + appRoot.String(), shop + "@" + toolRoot.String(): shop + "@" + toolRoot.String(),
	} {
		s, _ := newServer(t)
		if got, err := s.refOf(text); err != nil || got != want {
			t.Errorf("%s: got %q (%v), want %q", text, got, err, want)
		}
	}
	s, _ := newServer(t)
	_, err := s.RemovePin(t.Context(), &api.RemovePinRequest{Ref: "aaaaaaaaaaaa"})
	wantError(t, err, imagepin.InvalidRequest, `reference "aaaaaaaaaaaa": it is a digest of several references`, app, tool)
	_, err = s.RemovePin(t.Context(), &api.RemovePinRequest{Ref: "ffffffffffff"})
	wantError(t, err, imagepin.UnknownImage, "UnknownImage: ffffffffffff: ")
	_, err = s.Refresh(t.Context(), &api.RefreshRequest{Ref: shop + "@ffffffffffff"})
	wantError(t, err, imagepin.InvalidRequest, "no digest of "+shop)
	if resp, err := s.RemovePin(t.Context(), &api.RemovePinRequest{Ref: "dddddddddddd"}); err != nil || resp.GetPin().GetRef() != app {
		t.Errorf("got %v (%v)", resp, err)
	}
}

// TestReferenceThatLooksLikeADigest prefers a reference of the node.
func TestReferenceThatLooksLikeADigest(t *testing.T) {
	s, _ := newServer(t)
	name := "docker.io/library/cccccccccccc:latest"
	s.config.Images = images{append(s.config.Images.(images).entries, imagepin.Entry{Key: imagepin.Key{Ref: name}})}
	if got, err := s.parseRef("cccccccccccc"); err != nil || got.String() != name {
		t.Errorf("got %v (%v), want %s", got, err, name)
	}
}

// TestInspectByDigest inspects images by short digests.
func TestInspectByDigest(t *testing.T) {
	s, _ := newServer(t)
	for text, want := range map[string]struct {
		ref  string
		keys int
		rule string
	}{
		"cccccccccccc1": {appID.String(), 2, app}, "bbbbbbbbbbbb1": {app, 1, app}, app: {app, 1, app},
		"dddddddddddd": {app, 1, app},
	} {
		resp, err := s.Inspect(t.Context(), &api.InspectRequest{Ref: text})
		if err != nil || resp.GetRef() != want.ref || len(resp.GetKeys()) != want.keys || len(resp.GetPins()) != 1 || resp.GetRule().GetMatch() != want.rule {
			t.Errorf("%s: got %v (%v), want %v", text, resp, err, want)
		}
	}
	_, err := s.Inspect(t.Context(), &api.InspectRequest{Ref: "ffffffffffff"})
	wantError(t, err, imagepin.UnknownImage, "UnknownImage: ffffffffffff: ")
	_, err = s.Inspect(t.Context(), &api.InspectRequest{})
	wantError(t, err, imagepin.InvalidReference)
}

// TestNamespace rejects calls for another namespace than the one that imagepin serves.
func TestNamespace(t *testing.T) {
	s, _ := newServer(t)
	for _, ctx := range []context.Context{t.Context(), namespaces.WithNamespace(t.Context(), "k8s.io")} {
		if _, err := s.Pins(ctx, &api.PinsRequest{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Uninstall(ctx, &api.UninstallRequest{DryRun: true}); err != nil {
			t.Error(err)
		}
	}
	other := namespaces.WithNamespace(t.Context(), "moby")
	_, err := s.Pins(other, &api.PinsRequest{})
	wantError(t, err, imagepin.InvalidRequest, `namespace "moby"`, `"k8s.io"`)
	if _, err := s.Uninstall(other, &api.UninstallRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Uninstall: got %v, want InvalidArgument", err)
	}
}
