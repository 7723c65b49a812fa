// Package agree tests that the nodes of a cluster run one digest for each revision of a workload: with a real etcd, API
// server, scheduler and controllers, and with nodes that have a containerd with imagepin and a kubelet each. Nodes have
// only the permissions of nodes, and those of contrib/kubernetes/cluster.
package agree
