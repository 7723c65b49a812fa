// Package kubelet tests imagepin with a real kubelet.
package kubelet
