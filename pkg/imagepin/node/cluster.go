package node

import (
	"context"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/claim"
	"github.com/imagepin/imagepin/pkg/imagepin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// settlePeriod is how often provisional pins are claimed. The client of the API waits longer after failures.
const settlePeriod = 10 * time.Second

// clusterParts is what a node uses of a cluster. The zero value is a node that uses none.
type clusterParts struct {
	decide.ClusterConfig
	client *cluster.Client
}

// clusterOf returns how the node uses the pins of a cluster. It makes no connection. With unchanged settings, it returns
// what the node uses already, which remembers what it has read.
func (n *Node) clusterOf(s config.Cluster) (clusterParts, error) {
	if s.Kubeconfig == "" {
		return clusterParts{}, nil
	}
	if now := n.active.Load(); now != nil && now.Settings.Cluster == s {
		return now.cluster, nil
	}
	client, err := cluster.New(cluster.Config{Kubeconfig: s.Kubeconfig, Timeout: s.Timeout})
	if err != nil {
		return clusterParts{}, err
	}
	claims := claim.New(claim.Config{API: client, Observer: n.metrics, Reporter: n.reporter, Recheck: s.Recheck})
	return clusterParts{ClusterConfig: decide.ClusterConfig{Cluster: claims, Strict: s.Strict}, client: client}, nil
}

// settlePins claims provisional pins periodically until ctx ends.
func (s *Service) settlePins(ctx context.Context) {
	tick := time.NewTicker(settlePeriod)
	defer tick.Stop()
	var last settling
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			last = s.settleOnce(ctx, last)
		}
	}
}

// settling is what an attempt to claim provisional pins leaves for the next one.
type settling struct {
	// waiting are the pins that wait for another pod, with their pods, until they are tried again. The API server also
	// refuses to return a pod that exists, when it has just started.
	waiting map[string]time.Time
	failed  bool // and logged
}

// waitingPeriod is how often a pin is tried that waits for another pod.
const waitingPeriod = 5 * time.Minute

// settleOnce claims the provisional pins. It logs the first of consecutive failures.
func (s *Service) settleOnce(ctx context.Context, last settling) settling {
	next := settling{waiting: make(map[string]time.Time)}
	if s.node.active.Load().cluster.client == nil {
		return next
	}
	for _, p := range s.node.pins.Provisional() {
		id := p.ID.String() + " for " + p.Provisional.String()
		if until := last.waiting[id]; time.Now().Before(until) {
			next.waiting[id] = until
			continue
		}
		settled, err := s.node.decider.Settle(ctx, p)
		if err == nil {
			if !settled {
				next.waiting[id] = time.Now().Add(waitingPeriod)
			}
			continue
		}
		if next.failed = true; !last.failed && ctx.Err() == nil {
			log.G(ctx).WithError(err).WithField("ref", p.Ref).WithField("scope", string(p.Scope)).
				Warn("a provisional pin cannot be claimed in the cluster yet, trying again")
		}
	}
	return next
}

// reportEvent reports a change of the copy of a pin as an Event of Kubernetes.
func (n *Node) reportEvent(e pin.Event, p pin.Pin, previous digest.Digest) {
	owner, ok := p.Scope.Owner()
	if !ok || n.active.Load().cluster.client == nil {
		return
	}
	switch e {
	case pin.Moved:
		n.reporter.Moved(p.Scope.Namespace(), owner, p.Ref, previous, p.Root.Digest)
	case pin.Drifted:
		n.reporter.Drifted(p.Scope.Namespace(), owner, p.Ref, p.Root.Digest, p.Drift.Digest)
	}
}

// Report implements [claim.EventAPI].
func (n *Node) Report(ctx context.Context, e cluster.Event) error {
	client := n.active.Load().cluster.client
	if client == nil {
		return nil // turned off by a reload
	}
	return client.Report(ctx, e)
}
