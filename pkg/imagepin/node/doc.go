// Package node puts imagepin together for one node, out of containerd's services and what it is configured with. It is
// the same within containerd and beside it; only where the services come from differs.
//
// [New] makes what there is before the CRI: keys, pins, and how registries are asked. [Node.Serve] puts that in front of
// a CRI service. [Service.Run] keeps it in step with containerd.
package node
