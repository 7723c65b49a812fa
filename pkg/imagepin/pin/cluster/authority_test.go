package cluster

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/pintest"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// nodeWithout is a node that has none of the images, and whose credentials no registry accepts.
type nodeWithout struct{}

func (nodeWithout) Describe(reference.Named, digest.Digest) (ocispec.Descriptor, bool) {
	return ocispec.Descriptor{}, false
}

func (nodeWithout) DescribeAtRegistry(context.Context, reference.Named, digest.Digest) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errdefs.ErrUnauthenticated
}

func (nodeWithout) ReserveDigest(context.Context, string, reference.Named, digest.Digest) (func(), error) {
	return func() {}, nil
}

// nodeWith is nodeWithout with all images.
type nodeWith struct{ nodeWithout }

func (nodeWith) Describe(_ reference.Named, d digest.Digest) (ocispec.Descriptor, bool) {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: d, Size: 1}, true
}

// TestAuthority tests a node that can record what it learns, and one that leaves that to the pull.
func TestAuthority(t *testing.T) {
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Workload}, nil, []string{"revision"})
	if err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]Node{"images on the node": nodeWith{}, "no image on the node": nodeWithout{}} {
		t.Run(name, func(t *testing.T) {
			pintest.Test(t, func(t *testing.T) pintest.Subject {
				api, disk := newFakeAPI(), ctdtest.New(t)
				var wrote atomic.Int64
				count := func(_ context.Context, c ctdtest.Call) error {
					if c.Method != "Get" && c.Method != "List" {
						wrote.Add(1)
					}
					return nil
				}
				pins := pin.New(pin.Config{Images: ctdtest.Images{Store: disk.Images, Before: count}, Namespaces: ctdtest.Namespaces{DB: disk.DB}})
				if err := pins.Load(disk.Context(t)); err != nil {
					t.Fatal(err)
				}
				claims := NewClaims(ClaimsConfig{API: api, Observer: &outcomes{}, Reporter: NewReporter(nil, 0)})
				owned := pod
				owned.Owner = &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}
				q := pin.Question{Ref: image, Pod: pod}
				q.Policy, _ = rules.Decide(image, pod)
				other := pin.Question{Ref: image, Pod: owned, Policy: policy.Decision{Rule: policy.Rule{Consistency: policy.Node}, Scope: policy.NodeScope}}
				return pintest.Subject{
					Authority: New(Config{Claims: claims, Pins: pins, Node: node, Policy: ctdtest.Always(rules), Strict: true}),
					Question:  q,
					Other:     &other,
					Pin:       func(root ocispec.Descriptor) { api.set(root.Digest, nil) },
					Requests:  func() int { return api.count("owner") + api.count("find") + api.count("claim") },
					Writes:    func() int { return int(wrote.Load()) + api.count("claim") },
					Uses:      &pin.FirstUse{ID: idOf(owned, image), Pod: owned},
					Foreign:   pin.FirstUse{ID: pin.ID{Scope: policy.NodeScope, Ref: image}},
				}
			})
		})
	}
}
