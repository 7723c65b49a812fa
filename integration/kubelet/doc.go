// Package kubelet has the tests of imagepin with a real kubelet.
package kubelet
