// Package fleet tests nodes that get their images from a lock or a bundle: with a real etcd, API server, scheduler and
// controllers, and a kubelet on each node.
package fleet
