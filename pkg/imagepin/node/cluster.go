package node

import (
	"context"

	"github.com/containerd/plugin"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// PartPlugin is the type of the plugins of containerd that are parts of imagepin which a build can leave out.
const PartPlugin plugin.Type = config.PartType

// Cluster is the authority for the pins of a Kubernetes cluster, and what it does in the background.
type Cluster interface {
	decide.Cluster
	// Run claims provisional pins and sends events until ctx ends.
	Run(ctx context.Context)
	// Notify reports a change of the node's copy of a pin.
	Notify(e pin.Event, p pin.Pin, previous digest.Digest)
	// Keep returns which of the node's unused pins stay, because the cluster has them.
	Keep(ctx context.Context, unused []pin.Pin) map[pin.ID]bool
	// Problem returns why the pins of the cluster cannot be used now, or nil.
	Problem(ctx context.Context) error
	// Close closes the connections when the running calls have ended. Later calls fail.
	Close()
}

// OpenCluster returns the authority for the pins of a cluster. It makes no connection.
type OpenCluster func(s config.Cluster, n ClusterNode) (Cluster, error)

// ClusterNode is what a [Cluster] uses of the node.
type ClusterNode struct {
	Decider *decide.Decider
	Pins    *pin.Store
	Metrics *metrics.Metrics
	// Policy returns the current rules.
	Policy func() *policy.Policy
}

// clusterOf returns the authority for the pins of a cluster, or nil if the node uses none. With unchanged settings, it returns what
// the node uses already, which remembers what it has read.
func (n *Node) clusterOf(s config.Cluster) (Cluster, error) {
	if s.Kubeconfig == "" {
		return nil, nil
	}
	if now := n.active.Load(); now != nil && now.Settings.Cluster == s {
		return now.cluster, nil
	}
	return n.openCluster(s, ClusterNode{Decider: n.decider, Pins: n.pins, Metrics: n.metrics, Policy: n.policy})
}
