// Package claim agrees with the other nodes of a Kubernetes cluster on the digest of a tag, for each revision of a
// workload. The nodes agree through ImagePins (api/v1alpha1): the node that creates the ImagePin of a revision and an
// image decides the digest, and all others run it.
//
// The package finds and creates ImagePins, and remembers what it has read. It does not know the pins of the node: package
// decide keeps a copy of each ImagePin as a pin, and decides what to run if the API server does not answer.
package claim
