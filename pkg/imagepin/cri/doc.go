// Package cri serves the CRI to kubelet. It answers the calls about images, makes the images ready that calls of the
// runtime service use, and passes everything else on to upstream: containerd's own CRI service, in this process or in
// another one. What upstream knows of images is a view of the same image records; clients never see that view.
//
// How a call is given a target is in handler.go. Each call is in the file named after it.
package cri
