// Package schemas decodes the manifests of contrib/kubernetes into the API types of other versions of Kubernetes than the
// one that the other tests run, and into those of the Prometheus operator. go.mod has the oldest version. 1.35.mod and
// 1.36.mod have the types of these versions.
package schemas
