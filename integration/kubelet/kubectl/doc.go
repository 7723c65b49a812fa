// Package kubectl tests the kubectl plugin as a program, with a real API server and the controllers of workloads. The
// tests bind pods to nodes and report what they run, as a scheduler and kubelet would.
package kubectl
