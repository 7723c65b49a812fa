// Package schemas decodes the manifests of contrib/kubernetes into the API types of other versions of Kubernetes than the
// one that the other tests run, and into those of the Prometheus operator. go.mod has the oldest version, and 1.35.mod the types of Kubernetes 1.35.
package schemas
