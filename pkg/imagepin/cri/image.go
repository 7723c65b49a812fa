package cri

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// targetsAnnotation lists, on an image's spec, the targets it is ready for.
// ImageSpec.runtime_handler cannot: kubelet's image GC takes an image for
// unused whose handler is not that of its containers.
const targetsAnnotation = "io.imagepin.targets"

// toCRI makes the CRI's view of an image: one per image ID, with the names of
// all its keys.
func (s *Service) toCRI(img store.Image) *runtime.Image {
	var tags, digests, targets []string
	pinned := false
	for _, e := range img.Entries {
		if isDigested(e.Ref) {
			digests = append(digests, e.Ref)
		} else {
			tags = append(tags, e.Ref)
		}
		targets = append(targets, e.Target.String())
		pinned = pinned || slices.Contains(s.Store.PinnedImages, e.Ref) || s.Pins.Retains(e.Root.Digest)
	}
	uid, username := userOf(img.Entries[0].User)
	return &runtime.Image{
		Id:          img.ID.String(),
		RepoTags:    distinct(tags),
		RepoDigests: distinct(digests),
		Size:        uint64(img.Entries[0].Size),
		Uid:         uid,
		Username:    username,
		Pinned:      pinned,
		Spec: &runtime.ImageSpec{
			Image:       img.ID.String(),
			Annotations: map[string]string{targetsAnnotation: strings.Join(distinct(targets), ", ")},
		},
	}
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func isDigested(ref string) bool { return strings.Contains(ref, "@") }

// userOf splits the user of an image's configuration as containerd's CRI does
// (getUserFromImage in internal/cri/server/images/image_status.go): a number
// is a UID, anything else a name, and a group is left out.
func userOf(user string) (*runtime.Int64Value, string) {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		return nil, ""
	}
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &runtime.Int64Value{Value: uid}, ""
	}
	return nil, user
}

// normalized is a name as references are kept, or the name itself where it is
// not a reference.
func normalized(name string) string {
	if ref, err := reference.ParseDockerRef(name); err == nil {
		return ref.String()
	}
	return name
}

// verboseInfo is what ImageStatus tells besides the image itself. "info" is as
// containerd's CRI has it; "imagepin" is what is known of the keys.
func (s *Service) verboseInfo(ctx context.Context, e imagepin.Entry) (map[string]string, error) {
	b, err := content.ReadBlob(s.namespaced(ctx), s.Content, ocispec.Descriptor{Digest: e.ImageID})
	if err != nil {
		return nil, err
	}
	var spec ocispec.Image
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, err
	}
	stock, err := json.Marshal(struct {
		ChainID   string        `json:"chainID"`
		ImageSpec ocispec.Image `json:"imageSpec"`
	}{e.ChainID.String(), spec})
	if err != nil {
		return nil, err
	}
	type key struct {
		Ref         string    `json:"ref"`
		Platform    string    `json:"platform"`
		Snapshotter string    `json:"snapshotter"`
		Handlers    []string  `json:"handlers"`
		Digest      string    `json:"digest"`
		Manifest    string    `json:"manifest"`
		ReadyAt     time.Time `json:"readyAt"`
		Source      string    `json:"source"`
		Host        string    `json:"host,omitempty"`
		Record      string    `json:"record"`
	}
	var keys []key
	for _, o := range s.Store.ByID(e.ImageID) {
		keys = append(keys, key{
			Ref: o.Ref, Platform: o.Target.Platform, Snapshotter: o.Target.Snapshotter,
			Handlers: s.Runtimes.Handlers(o.Target), Digest: o.Root.Digest.String(),
			Manifest: o.Manifest.String(), ReadyAt: o.ReadyAt, Source: string(o.Source),
			Host: o.Host, Record: o.Record,
		})
	}
	ours, err := json.Marshal(struct {
		Keys []key `json:"keys"`
	}{keys})
	if err != nil {
		return nil, err
	}
	return map[string]string{"info": string(stock), "imagepin": string(ours)}, nil
}
