package claims

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	claim "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestClockSkew claims with a node whose clock is decades behind. The node that creates the ImagePin first decides, and its
// time is that of the API server.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	r := newRig(t, kube)
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)
	late := r.webPod("y", n2)
	r.ownerOf(n2, late)
	self := policy.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
	path := r.path("imagepin.io/v1alpha1/imagepins")

	// In a bubble, it is midnight on 1 January 2000.
	behind := func(do func(ctx context.Context, n *claim.Claims)) {
		synctest.Test(t, func(t *testing.T) {
			if year := time.Now().Year(); year != 2000 {
				t.Fatalf("it is %d", year)
			}
			c, err := client.New(client.Config{Kubeconfig: r.kubeconfig(n1), Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			do(t.Context(), claim.NewClaims(claim.ClaimsConfig{
				API: c, Observer: ignored{}, Reporter: claim.NewReporter(c, 0), Recheck: 0, // each Lookup asks the API server
			}))
		})
	}

	behind(func(ctx context.Context, n *claim.Claims) {
		got, err := n.Claim(ctx, self, tag, digestA)
		if err != nil || got != digestA {
			t.Errorf("the claim of the node whose clock is behind: got %s and %v, want %s", got, err, digestA)
		}
	})
	pin, created := r.claim(n2, owner, late, digestB)
	if created || pin.Digest != digestA || time.Since(pin.CreatedAt) > time.Hour {
		t.Errorf("the other node: got %+v, %v, want the ImagePin of %s, of this hour", pin, created, n1)
	}

	r.must("DELETE", path+"/"+pin.Name, nil, nil)
	if _, created := r.claim(n2, owner, late, digestB); !created {
		t.Error("the other node has not created the next ImagePin")
	}
	behind(func(ctx context.Context, n *claim.Claims) {
		got, err := n.Claim(ctx, self, tag, digestA)
		if err != nil || got != digestB {
			t.Errorf("the node whose clock is behind: got %s and %v, want %s", got, err, digestB)
		}
		if got, err := n.Lookup(ctx, self, tag, false); err != nil || got != digestB {
			t.Errorf("the node whose clock is behind: got %s and %v, want %s", got, err, digestB)
		}
	})
}

// ignored is an observer that counts nothing.
type ignored struct{}

func (ignored) Claimed(pin.Outcome, time.Duration) {}

func (ignored) Lost() {}
