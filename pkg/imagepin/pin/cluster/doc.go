// Package cluster is the authority for the pins that the nodes of a Kubernetes cluster share.
//
// The nodes agree through ImagePins (api/v1alpha1): the node that creates the ImagePin of a revision and an image decides the
// digest, and all others run it. Nodes agree only by creating objects: clocks do not matter, and no node waits for another.
//
// [Claims] finds and creates ImagePins, and remembers what it has read. [Authority] answers which digest an image means for a pod.
// It keeps a copy of each ImagePin as a pin of the node, which needs no API server, and pins provisionally while the API server does
// not answer (provisional.go). Package kube is the client of the Kubernetes API.
package cluster
