// Package cri serves the CRI to kubelet: it answers what concerns images
// itself, prepares the images that runtime calls are about to use, and forwards
// everything else to the CRI service behind it.
//
// The service behind is containerd's own, reached as a gRPC client, so that it
// is the same whether it runs in this process or in another. What it knows of
// images is a view of the same image records; clients never see that view.
//
// How a call becomes a target is in handler.go; what each call does is in the
// file named after it.
package cri
