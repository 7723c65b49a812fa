package control

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func descriptor(d ocispec.Descriptor) *api.Descriptor {
	return &api.Descriptor{MediaType: d.MediaType, Digest: d.Digest.String(), Size: d.Size}
}

// Target converts a target.
func Target(t runtimeplatform.Target) *api.Target {
	return &api.Target{Platform: t.Platform, Snapshotter: t.Snapshotter}
}

func (s *Server) key(e imagepin.Entry) *api.Key {
	k := &api.Key{
		Ref: e.Ref, Target: Target(e.Target), Handlers: s.config.Runtimes().Handlers(e.Target),
		Root: descriptor(e.Root), Manifest: e.Manifest.String(), ImageId: e.ImageID.String(), ChainId: e.ChainID.String(),
		Size: e.Size, User: e.User, ReadyAt: timestamppb.New(e.ReadyAt), Source: string(e.Source), Host: e.Host,
		Record: e.Record, State: stateReady,
	}
	if s.config.Unverified != nil {
		if k.Problem = s.config.Unverified(e); k.Problem != "" {
			k.State = stateUnverified
		}
	}
	if _, used := s.config.Runtimes().ForTarget(e.Target); !used {
		k.State = stateUnused
		if !e.UnusedAt.IsZero() {
			k.Since = timestamppb.New(e.UnusedAt)
		}
	}
	s.setPins(k, s.config.Pins.Scopes(e.Ref))
	return k
}

// setPins sets the pin that holds a key at its digest or, if there is none, the first that holds it at another one.
func (s *Server) setPins(k *api.Key, pins []pin.Pin) {
	for _, p := range pins {
		if p.Root.Digest.String() == k.GetRoot().GetDigest() {
			k.Pin = string(p.Scope)
			return
		}
	}
	if len(pins) > 0 {
		k.OtherPin, k.OtherPinDigest = string(pins[0].Scope), pins[0].Root.Digest.String()
	}
}

// The states of a key.
const (
	stateReady     = "ready"
	stateDamaged   = "damaged"
	stateUnused    = "unused"
	stateComparing = "comparing"
	// stateUnverified is that of a key that is ready.
	stateUnverified = "unverified"
)

// damagedKey converts a damaged key.
func (s *Server) damagedKey(d store.Damaged) *api.Key {
	k := s.key(d.Entry)
	k.State, k.Problem, k.Since = stateDamaged, d.Reason, nil
	if d.Waiting {
		k.State = stateComparing
	}
	if !d.DamagedAt.IsZero() {
		k.Since = timestamppb.New(d.DamagedAt)
	}
	return k
}

// Pin converts a pin to its API message.
func Pin(p pin.Pin) *api.Pin {
	a := &api.Pin{
		Scope: string(p.Scope), Ref: p.Ref, Root: descriptor(p.Root), MadeAt: timestamppb.New(p.MadeAt),
		UsedAt: timestamppb.New(p.UsedAt), MadeBy: string(p.By), Retain: p.Retain,
		Claimer: p.Claimer, Provisional: p.Provisional != nil,
	}
	for _, h := range p.History {
		a.History = append(a.History, &api.PinChange{At: timestamppb.New(h.From), Digest: h.Digest.String(), By: string(h.By)})
	}
	if p.Drift != nil {
		a.Drift = &api.Drift{Digest: p.Drift.Digest.String(), Since: timestamppb.New(p.Drift.Since)}
	}
	return a
}

// pin is Pin with what is known from lookups.
func (s *Server) pin(p pin.Pin) *api.Pin {
	a := Pin(p)
	r, ok := s.config.Lookups.Of(p)
	if !ok {
		return a
	}
	a.Lookup = &api.Lookup{At: timestamppb.New(r.At), Outcome: string(r.Outcome), Why: r.Why}
	if !r.Since.IsZero() {
		a.Lookup.Since = timestamppb.New(r.Since)
	}
	return a
}

func rule(r policy.Rule) *api.Rule {
	return &api.Rule{
		Match: r.Match, PullBehavior: string(r.Behavior), VersionConsistency: string(r.Consistency),
		Retain: r.Retain, AllowPodOverride: r.AllowPodOverride, Locked: string(r.Locked),
		NewRevision: string(r.NewRevision), ResolveAt: string(r.ResolveAt), Verify: string(r.Verify),
	}
}

// Credential converts a credential.
func Credential(c *api.Credential) resolve.Credential {
	return resolve.Credential{
		Username: c.GetUsername(), Password: c.GetPassword(), Auth: c.GetAuth(),
		ServerAddress: c.GetServerAddress(), IdentityToken: c.GetIdentityToken(),
	}
}
