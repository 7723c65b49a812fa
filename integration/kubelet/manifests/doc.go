// Package manifests tests contrib/kubernetes/cluster on a real API server with the Node and RBAC authorizers.
package manifests
