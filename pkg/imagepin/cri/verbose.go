package cri

import (
	"context"
	"encoding/json"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// verboseInfo returns the verbose part of ImageStatus. "info" has the same content as in containerd's CRI; "imagepin"
// describes the keys.
func (s *imageCalls) verboseInfo(ctx context.Context, e imagepin.Entry) (map[string]string, error) {
	b, err := content.ReadBlob(s.namespaced(ctx), s.Content, ocispec.Descriptor{Digest: e.ImageID})
	if err != nil {
		return nil, err
	}
	var spec ocispec.Image
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, err
	}
	info, err := json.Marshal(struct {
		ChainID   string        `json:"chainID"`
		ImageSpec ocispec.Image `json:"imageSpec"`
	}{e.ChainID.String(), spec})
	if err != nil {
		return nil, err
	}
	var keys []verboseKey
	for _, o := range s.Store.ByID(e.ImageID) {
		keys = append(keys, s.verboseKey(o))
	}
	keyInfo, err := json.Marshal(struct {
		Keys []verboseKey `json:"keys"`
	}{keys})
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(info), "imagepin": string(keyInfo)}, nil
}

// verboseKey is a key as crictl inspecti shows it.
type verboseKey struct {
	Ref         string       `json:"ref"`
	Platform    string       `json:"platform"`
	Snapshotter string       `json:"snapshotter"`
	Handlers    []string     `json:"handlers"`
	Digest      string       `json:"digest"`
	Manifest    string       `json:"manifest"`
	ReadyAt     time.Time    `json:"readyAt"`
	Source      string       `json:"source"`
	Host        string       `json:"host,omitempty"`
	Record      string       `json:"record"`
	Rule        verboseRule  `json:"rule"`
	Pins        []verbosePin `json:"pins,omitempty"`
}

// verboseRule is the policy rule for a key's reference.
type verboseRule struct {
	Match              string `json:"match,omitempty"` // empty for the defaults
	PullBehavior       string `json:"pullBehavior"`
	VersionConsistency string `json:"versionConsistency"`
	Retain             bool   `json:"retain"`
	AllowPodOverride   bool   `json:"allowPodOverride"`
	NewRevision        string `json:"newRevision"`
	ResolveAt          string `json:"resolveAt"`
}

// verbosePin is the pin of a key's reference in one scope. Its digest can differ from the key's.
type verbosePin struct {
	Scope  string     `json:"scope"`
	Digest string     `json:"digest"`
	Since  time.Time  `json:"since"`
	By     string     `json:"by"`
	Retain bool       `json:"retain"`
	Drift  *pin.Drift `json:"drift,omitempty"`
}

func (s *imageCalls) verboseKey(e imagepin.Entry) verboseKey {
	k := verboseKey{
		Ref: e.Ref, Platform: e.Target.Platform, Snapshotter: e.Target.Snapshotter,
		Handlers: s.Runtimes().Handlers(e.Target), Digest: e.Root.Digest.String(),
		Manifest: e.Manifest.String(), ReadyAt: e.ReadyAt, Source: string(e.Source),
		Host: e.Host, Record: e.Record, Rule: ruleOf(s.Decider.Rule(e.Ref)),
	}
	for _, p := range s.Pins.Scopes(e.Ref) {
		k.Pins = append(k.Pins, verbosePin{
			Scope: string(p.Scope), Digest: p.Root.Digest.String(), Since: p.MadeAt.UTC(), By: string(p.By),
			Retain: p.Retain, Drift: p.Drift,
		})
	}
	return k
}

func ruleOf(r policy.Rule) verboseRule {
	return verboseRule{
		Match: r.Match, PullBehavior: string(r.Behavior), VersionConsistency: string(r.Consistency),
		Retain: r.Retain, AllowPodOverride: r.AllowPodOverride, NewRevision: string(r.NewRevision),
		ResolveAt: string(r.ResolveAt),
	}
}
