package agree

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/testkit"
)

// poolOptions are the options of nodes that claim ImagePins.
type poolOptions struct {
	pool.Options
	// timeout is how long imagepin waits for the API server. Empty means 30 seconds, so that no node pins provisionally
	// because the machine is busy.
	timeout string
	// cluster is TOML for imagepin's section cluster.
	cluster string
}

func startPool(ctx context.Context, name string, opts poolOptions) (*pool.Pool, error) {
	opts.Config = pool.Claims(cmp.Or(opts.timeout, "30s"), opts.cluster)
	return pool.Start(ctx, kube, name, opts.Options)
}

// pools is the number of pools that single tests have started.
var pools atomic.Int32

// nodes limits how many nodes of single tests run at a time. With the default of Linux for fs.inotify.max_user_instances, 128, which
// hack/inotify.sh raises, about 15 nodes run.
var nodes = semaphore.NewWeighted(6)

// newPool starts nodes for one test. It waits until other tests have stopped enough of theirs.
func newPool(t *testing.T, name string, opts poolOptions) *pool.Pool {
	t.Helper()
	n := int64(opts.Nodes)
	if err := nodes.Acquire(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes.Release(n) })
	p, err := startPool(testkit.Context(t), fmt.Sprintf("%s-%d", name, pools.Add(1)), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the nodes: %v", err)
		}
	})
	return p
}

// cordon makes the scheduler use a node, or not. Its pods keep running.
func cordon(t *testing.T, m *pool.Member, cordoned bool) {
	t.Helper()
	if err := kube.Cordon(testkit.Context(t), m.Name, cordoned); err != nil {
		t.Fatal(err)
	}
}

// awaitPin waits until the node has exactly one pin of a reference for an owner, and a condition holds for it.
func awaitPin(t *testing.T, m *pool.Member, ref string, owner types.UID, what string, done func(*api.Pin) bool) {
	t.Helper()
	testkit.EventuallyIn(t, patience, fmt.Sprintf("the pin of %s on %s %s", ref, m.Name, what), func(ctx context.Context) (bool, error) {
		resp, err := api.NewControlClient(m.Conn()).Pins(ctx, &api.PinsRequest{RefGlob: ref})
		if err != nil {
			return false, err
		}
		var found []*api.Pin
		for _, p := range resp.Pins {
			if owner == "" || strings.Contains(p.Scope, string(owner)) {
				found = append(found, p)
			}
		}
		return len(found) == 1 && done(found[0]), nil
	})
}

func provisional(p *api.Pin) bool { return p.Provisional }

// settled returns a condition for a copy of an ImagePin.
func settled(digest string) func(*api.Pin) bool {
	return func(p *api.Pin) bool { return !p.Provisional && p.Root.GetDigest() == digest }
}
