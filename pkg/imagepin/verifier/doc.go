// Package verifier identifies what decides in containerd's image verifier plugins, so that a verdict is kept only while
// nothing about it has changed.
package verifier
