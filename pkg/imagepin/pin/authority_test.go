package pin_test

import (
	"context"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/pintest"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const tag = "registry.example/team/app:1"

// open returns an empty store, and a count of its writes.
func open(t *testing.T) (s *pin.Store, ctx context.Context, writes func() int) {
	t.Helper()
	node := ctdtest.New(t)
	ctx, wrote := node.Context(t), 0
	count := func(_ context.Context, c ctdtest.Call) error {
		if c.Method != "Get" && c.Method != "List" {
			wrote++
		}
		return nil
	}
	s = pin.New(pin.Config{Images: ctdtest.Images{Store: node.Images, Before: count}, Namespaces: ctdtest.Namespaces{DB: node.DB}})
	if err := s.Load(ctx); err != nil {
		t.Fatal(err)
	}
	return s, ctx, func() int { return wrote }
}

// inCluster is a first use for a pod with an owner.
var inCluster = pin.FirstUse{
	ID:  pin.ID{Scope: policy.OwnerScope("shop", policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}), Ref: tag},
	Pod: policy.Pod{Namespace: "shop", Name: "web-1-x", UID: "7", Owner: &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}},
}

func TestLock(t *testing.T) {
	pintest.Test(t, func(t *testing.T) pintest.Subject {
		s, _, writes := open(t)
		return pintest.Subject{
			Authority: pin.Lock{Pins: s}, Requests: func() int { return 0 }, Writes: writes,
			Question: pin.Question{Ref: tag, Policy: policy.Decision{Scope: policy.NodeScope}},
			Pin: func(root ocispec.Descriptor) {
				s.SetLock([]pin.Pin{{ID: pin.ID{Scope: policy.LockScope, Ref: tag}, Root: root, By: pin.ByLock}}, nil)
			},
			Foreign: pin.FirstUse{ID: pin.ID{Scope: policy.NodeScope, Ref: tag}}, Other: &pin.Question{Ref: "registry.example/team/other:1"},
		}
	})
}

// TestNode tests the scope of the rule, and a pin of an operator for a reference that no rule pins.
func TestNode(t *testing.T) {
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Node}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for scope, by := range map[policy.Scope]pin.By{policy.NodeScope: pin.ByUse, "": pin.ByOperator} {
		t.Run(string(by), func(t *testing.T) {
			pintest.Test(t, func(t *testing.T) pintest.Subject {
				s, ctx, writes := open(t)
				id := pin.ID{Scope: policy.NodeScope, Ref: tag}
				return pintest.Subject{
					Authority: pin.Node{Pins: s, Policy: ctdtest.Always(rules)}, Requests: func() int { return 0 }, Writes: writes,
					Question: pin.Question{Ref: tag, Policy: policy.Decision{Scope: scope}},
					Pin: func(root ocispec.Descriptor) {
						if _, err := s.Move(ctx, id, root, by, false); err != nil {
							t.Error(err)
						}
					},
					Uses: map[bool]*pin.FirstUse{true: {ID: id}}[scope != ""], Foreign: inCluster,
				}
			})
		})
	}
}
