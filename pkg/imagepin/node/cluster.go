package node

import (
	"context"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/claim"
	"github.com/imagepin/imagepin/pkg/imagepin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

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

// reportEvent reports a change of the copy of a pin as an Event of Kubernetes.
func (n *Node) reportEvent(e pin.Event, p pin.Pin, previous digest.Digest) {
	owner, ok := p.Scope.Owner()
	if !ok || n.active.Load().cluster.client == nil {
		return
	}
	switch e {
	case pin.Moved:
		if p.WasCopy() { // otherwise the ImagePin has not changed, and the Event is that of a lost claim
			n.reporter.Moved(p.Scope.Namespace(), owner, p.Ref, previous, p.Root.Digest)
		}
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
