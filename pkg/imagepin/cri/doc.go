// Package cri serves the CRI to kubelet. It answers the image calls, and makes the images ready that RunPodSandbox and
// CreateContainer use. It forwards every other call to upstream: containerd's own CRI service, in this process or in
// another one. Upstream's view of the images is derived from the same image records. Clients never see that view.
//
// handler.go resolves the target of a call. Each intercepted call is in the file named after it.
package cri
