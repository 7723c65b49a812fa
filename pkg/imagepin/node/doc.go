// Package node assembles imagepin for one node from containerd's services and a configuration. It is the same as a
// plugin of containerd and as a separate process; only the source of the services differs.
//
// [New] creates the parts that need no CRI service: keys, pins, and the access to registries. [Node.Serve] puts them in
// front of a CRI service. [Service.Run] builds the index and follows containerd's events.
package node
