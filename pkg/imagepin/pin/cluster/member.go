package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Settings configure a [Member].
type Settings struct {
	// Kubeconfig is the absolute path of the file with the API server and the credential of the node.
	Kubeconfig string
	// Strict is as in [Config].
	Strict bool
	// Timeout is how long a call waits for the API server.
	Timeout time.Duration
	// Recheck is how long an ImagePin that was read is used before it is read again.
	Recheck time.Duration
}

// Member is a node of a cluster: the authority for its shared pins, and what the node does for them in the background.
type Member struct {
	*Authority
	client   *kube.Client
	reporter *Reporter
	settler  settler
	keeper
	running sync.Mutex // held by Run
}

// Join returns a member. It makes no connection.
func Join(s Settings, pins Pins, n Node, rules func() *policy.Policy, o Observer) (*Member, error) {
	client, err := kube.New(kube.Config{Kubeconfig: s.Kubeconfig, Timeout: s.Timeout})
	if err != nil {
		return nil, err
	}
	reporter := NewReporter(client, EventDelay)
	claims := NewClaims(ClaimsConfig{API: client, Observer: o, Reporter: reporter, Recheck: s.Recheck})
	a := New(Config{Claims: claims, Pins: pins, Node: n, Policy: rules, Strict: s.Strict})
	return &Member{
		Authority: a, client: client, reporter: reporter,
		settler: settler{pins: pins.Provisional, settle: a.Settle}, keeper: keeper{exists: claims.Exists},
	}, nil
}

// Run claims provisional pins and sends events until ctx ends.
func (m *Member) Run(ctx context.Context) {
	m.running.Lock()
	defer m.running.Unlock()
	var events sync.WaitGroup
	events.Go(func() { m.reporter.Run(ctx) })
	m.settler.run(ctx)
	events.Wait()
}

// Notify reports a change of the node's copy of a pin as an Event of Kubernetes.
func (m *Member) Notify(e pin.Event, p pin.Pin, previous digest.Digest) {
	owner, ok := p.Scope.Owner()
	if !ok {
		return
	}
	switch e {
	case pin.Moved:
		if p.WasCopy() { // otherwise the ImagePin has not changed, and the Event is that of a lost claim
			m.reporter.Moved(p.Scope.Namespace(), owner, p.Ref, previous, p.Root.Digest)
		}
	case pin.Drifted:
		m.reporter.Drifted(p.Scope.Namespace(), owner, p.Ref, p.Root.Digest, p.Drift.Digest)
	}
}

// Problem returns why the pins of the cluster cannot be used now, or nil.
func (m *Member) Problem(ctx context.Context) error { return m.client.Problem(ctx) }

// Close closes the connections when the running calls have ended. Later calls fail.
func (m *Member) Close() { m.client.Close() }
