// Package lock tests imagepin lock with a registry, kustomize and kbld.
package lock
