// Package kube is the node's client of the Kubernetes API for ImagePins (package api/v1alpha1): which digest all nodes
// run for an image of a revision of a workload.
//
// A [Client] finds the [Owner] of a pod, finds its pin, and claims it. It has no policy: it does not resolve tags, it does
// not decide what happens without an API server, and it keeps no pins. Concurrent identical calls are not merged.
//
// # Credential
//
// The client uses a kubeconfig file, usually that of the node's kubelet. It reads the file, and the certificates and the
// token that the file names, at the first call and again when one of them has changed. So it works with a file that
// kubelet writes later, and a call uses a rotated certificate at once, on a new connection.
//
// The name of the node comes from the credential, because an admission policy compares the two: a node can claim only for
// itself. The credential is that of
//
//   - a node, with the user name system:node:<name>. The policy in contrib/kubernetes/cluster is for nodes; or
//   - a service account, with a token that is bound to a node (or to a pod, which has a node). The API server then adds
//     the name of the node to the user's extra fields, as authentication.kubernetes.io/node-name. This needs another
//     policy, which compares that field. Such a policy cannot check that the pod runs on the node: the Node authorizer
//     restricts nodes to their own pods, and RBAC cannot do that for a service account.
//
// There is no in-cluster configuration. kubelet needs the CRI before it starts a pod, so this code does not run in one.
//
// # Unavailable API servers
//
// All requests of a call share one timeout. After a failure that concerns other calls, calls fail at once for a short
// time, see [Client]. An answer that asks the client to wait (429, and 5xx with Retry-After) is waited for if the timeout and
// the caller's deadline allow it.
package kube
