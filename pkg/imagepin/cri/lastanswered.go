package cri

import "github.com/imagepin/imagepin/pkg/imagepin"

// maxAnswered is how many names [base.answered] has. It is more than a large node's images have.
const maxAnswered = 16384

// answer is the entry that a name was last answered with, for a call for a pod. Only calls that are not for a pod use it, such as
// kubelet's lookup of the image's user: the pin of another workload can have decided the entry. The image may no longer be on the
// node.
type answer struct {
	entry imagepin.Entry
	// tagged is true if the name had a record.
	tagged bool
}
