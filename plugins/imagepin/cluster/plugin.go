// Package cluster makes pins in the Kubernetes API a part of imagepin, as a plugin of containerd and for imagepin serve. It is
// imported for its effect. A build without it has no client of the Kubernetes API.
package cluster

import (
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
)

func init() {
	registry.Register(&plugin.Registration{
		Type:   node.PartPlugin,
		ID:     config.ClusterPart,
		InitFn: func(*plugin.InitContext) (any, error) { return node.OpenCluster(Open), nil },
	})
}

// Open implements [node.OpenCluster].
func Open(s config.Cluster, n node.ClusterNode) (node.Cluster, error) {
	m, err := cluster.Join(cluster.Settings(s), n.Pins, n.Decider, n.Policy, n.Metrics)
	if err != nil {
		return nil, err
	}
	return m, nil
}
