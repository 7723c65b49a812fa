package pull

import (
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Job is an image to make ready.
type Job struct {
	decide.Verdict
	Runtime runtimeplatform.Runtime
	From    From
	Record  Record
	// Progress is called with the progress of the pull. It may be nil.
	Progress transfer.ProgressFunc

	meter    *meter
	verified bool // by the image verifiers
	retry    bool // an earlier attempt found the image ready, or made it ready
}

// byDigest returns the reference of the job's root by digest.
func (j Job) byDigest() (reference.Canonical, error) {
	return reference.WithDigest(reference.TrimNamed(j.Ref), j.Root.Digest)
}

// From is where the content of a job comes from.
type From int

const (
	// FromRegistry fetches what is not on the node.
	FromRegistry From = iota
	// FromNode asks no registry: all content is on the node.
	FromNode
	// FromBundle is FromNode for content that came from a bundle, so that the image needs no proof.
	FromBundle
)

// Record is what a job does with the key of its reference. The zero value gives it the digest of the job, if the verdict decides what
// the reference resolves to on the node.
type Record struct {
	keep bool
	lost *imagepin.Entry
}

// Keep is for a digest that was decided earlier: if the reference has another digest on the node when the image is recorded, the job
// records the image under its digest only.
var Keep = Record{keep: true}

// Restore is for the repair of a recorded key. The job fetches and unpacks the image even if it is recorded as ready, and records only
// that key.
func Restore(lost imagepin.Entry) Record { return Record{lost: &lost} }

// restores reports whether the job is the repair of a recorded key.
func (r Record) restores() bool { return r.lost != nil }
