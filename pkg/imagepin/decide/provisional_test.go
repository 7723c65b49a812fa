package decide

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestClusterAway pins provisionally while the API server does not answer, and claims the pin later.
func TestClusterAway(t *testing.T) {
	c := newFakeCluster()
	a, b := newMember(t, c, false), newMember(t, c, false)
	b.ref = a.ref
	c.refuses = errAway
	a.wantPull(t, webPod("web-1-a"), "old")
	label := policy.WorkloadScope("shop", "revision", "1")
	held, ok := a.pins.Get(a.id(label))
	if !ok || held.Provisional == nil || *held.Provisional != (pin.Claimant{Name: "web-1-a2x9z", UID: "uid of web-1-a"}) {
		t.Fatalf("got %+v, want a provisional pin", held)
	}
	a.registry.tag.Store("new")
	a.wantPull(t, webPod("web-1-b"), "old")

	t.Run("settled", func(t *testing.T) {
		c.refuses = nil
		noError(t, a.authority.Settle(a.ctx, held))
		a.wantCopy(t, "old")
		if _, ok := a.pins.Get(a.id(label)); ok {
			t.Error("the provisional pin is still there")
		}
		b.wantPull(t, webPod("web-1-c"), "old")
	})
	t.Run("the copy is enough", func(t *testing.T) {
		c.refuses = errAway
		a.wantPull(t, webPod("web-1-d"), "old")
	})
}

// TestClusterSettles claims a provisional pin when the next pod of its revision starts.
func TestClusterSettles(t *testing.T) {
	for name, test := range map[string]struct{ other, want string }{
		"wins":  {"", "old"},
		"loses": {"new", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster()
			e := newMember(t, c, false)
			c.refuses = errAway
			e.wantPull(t, webPod("web-1-a"), "old")
			e.registry.tag.Store("new")
			c.refuses = nil
			if test.other != "" {
				c.pins["uid-1 "+e.ref.String()] = roots[test.other].Digest
			}
			e.wantPull(t, webPod("web-1-b"), test.want)
			e.wantCopy(t, test.want)
			_, err := e.request(e.ctx, e.ref, webPod("web-1-b")) // for the container
			noError(t, err)
			wantEqual(t, "provisional pins", len(e.pins.Provisional()), 0)
		})
	}
}

// TestClusterProvisionalOfAnother claims no provisional pin that can be one of an earlier owner, which was deleted and
// created again with the same labels while the API server did not answer, unless a pod of the later owner has used the pin.
func TestClusterProvisionalOfAnother(t *testing.T) {
	label := policy.WorkloadScope("shop", "revision", "1")
	for name, test := range map[string]struct {
		claimed string // in the cluster
		owner   *policy.Owner
		want    string
		left    int  // provisional pins
		used    bool // by a pod of the later owner
	}{
		"gone, but used":             {"", nil, "old", 0, true},
		"gone":                       {"", nil, "new", 0, false},
		"gone, claimed":              {"new", nil, "new", 0, false},
		"of another owner":           {"", &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid of the earlier one"}, "new", 1, false},
		"of another owner, claimed":  {"new", &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid of the earlier one"}, "new", 1, false},
		"of the same owner":          {"", &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid-1"}, "old", 0, false},
		"of the same owner, claimed": {"new", &policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid-1"}, "new", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster()
			e := newMember(t, c, false)
			c.refuses = errAway
			e.wantPull(t, webPod("web-1-a"), "old")
			held, _ := e.pins.Get(e.id(label))
			wantEqual(t, "provisional", held.Provisional != nil, true)
			if test.used {
				_, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-b"), Root: roots["old"], Verified: true})
				noError(t, err)
			}
			c.refuses = nil
			c.pods = map[string]*policy.Owner{held.Provisional.UID: test.owner}
			if test.claimed != "" {
				c.pins["uid-1 "+e.ref.String()] = roots[test.claimed].Digest
			}
			e.registry.tag.Store("new")
			e.wantPull(t, webPod("web-1-b"), test.want)
			_, err := e.request(e.ctx, e.ref, webPod("web-1-b")) // for the container
			noError(t, err)
			e.wantCopy(t, test.want)
			wantEqual(t, "provisional pins", len(e.pins.Provisional()), test.left)
		})
	}
}

// TestClusterLosesProvisional moves a provisional pin to the digest of the cluster.
func TestClusterLosesProvisional(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.refuses = errAway
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = nil
	c.pins["uid-1 "+e.ref.String()] = roots["new"].Digest
	for _, held := range e.pins.Provisional() {
		noError(t, e.authority.Settle(e.ctx, held))
	}
	e.wantCopy(t, "new")
	wantEqual(t, "provisional pins", len(e.pins.Provisional()), 0)
}

// TestClusterWaits does not claim a provisional pin whose pod is gone, or if the claim is refused: the pin waits. The Node
// authorizer refuses to return a pod that is gone.
func TestClusterWaits(t *testing.T) {
	for name, test := range map[string]struct {
		refuses   error
		ownerless bool  // the pod has no owner
		status    int32 // of the registry, if another node was first
		waits     bool
	}{
		"the pod is gone":                   {refuses: errdefs.ErrPermissionDenied, waits: true},
		"the pod has no owner":              {ownerless: true, waits: true},
		"a foreign ImagePin":                {refuses: errdefs.ErrFailedPrecondition, waits: true},
		"the registry requires a login":     {status: 401, waits: true},
		"the registry denies":               {status: 403, waits: true},
		"the digest is gone":                {status: 404, waits: true},
		"the registry does not answer":      {status: 503},
		"the API server is still not there": {refuses: errAway},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster()
			e := newMember(t, c, false)
			c.refuses = errAway
			pod := webPod("web-1-a")
			e.wantPull(t, pod, "old")
			c.refuses, c.ownerless = test.refuses, test.ownerless
			if test.status != 0 {
				c.pins["uid-1 "+e.ref.String()] = roots["new"].Digest
				e.registry.status.Store(test.status)
			}
			for _, held := range e.pins.Provisional() {
				err := e.authority.Settle(e.ctx, held)
				waits := new(cluster.WaitError)
				if err == nil || errors.As(err, &waits) != test.waits {
					t.Errorf("got %v, want that the pin waits for another pod: %v", err, test.waits)
				}
			}
			wantEqual(t, "provisional pins", len(e.pins.Provisional()), 1)
			wantEqual(t, "refused requests", c.refused, 0)
		})
	}
}

// TestForeignPinDeniesNothing starts pods although the ImagePin with the name of their pin is for something else, unless the node
// does not pin provisionally. The node claims its pin when the foreign one is deleted, and keeps the copy that it has of a pin.
func TestForeignPinDeniesNothing(t *testing.T) {
	for name, during := range map[string]bool{"found": false, "created during the claim": true} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster()
			e, strict := newMember(t, c, false), newMember(t, c, true)
			strict.ref = e.ref
			if c.foreign = !during; during {
				c.beside = func() { c.foreign = true }
			}
			e.wantPull(t, webPod("web-1-a"), "old")
			c.beside = nil
			wantEqual(t, "provisional pins", len(e.pins.Provisional()), 1)
			e.registry.tag.Store("new")
			e.wantPull(t, webPod("web-1-b"), "old")
			held, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-c"), Root: roots["new"], Verified: true})
			if err != nil || version(held.Root.Digest) != "old" {
				t.Errorf("for a container: got %+v, %v, want the node's pin", held, err)
			}
			if got, err := strict.pull(t, webPod("web-1-d")); !errors.Is(err, error(errForeign)) {
				t.Errorf("without provisional pins: got %s, %v, want ForeignPin", got, err)
			}
			waits := new(cluster.WaitError)
			if err := e.authority.Settle(e.ctx, e.pins.Provisional()[0]); !errors.As(err, &waits) {
				t.Errorf("got %v, want that the pin waits", err)
			}
			c.foreign = false
			e.wantPull(t, webPod("web-1-e"), "old")
			e.wantCopy(t, "old")
			strict.wantPull(t, webPod("web-1-d"), "old")
			c.foreign = true
			e.wantPull(t, webPod("web-1-f"), "old")
			strict.wantPull(t, webPod("web-1-f"), "old")
			e.wantCopy(t, "old")
		})
	}
}
