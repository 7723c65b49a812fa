package protect

import (
	"crypto/sha256"
	"encoding/hex"

	digest "github.com/opencontainers/go-digest"
)

// The number of hexadecimal digits in a tag.
const (
	clusterDigits = 8
	digestDigits  = 12
)

// Cluster is the part of tags that identifies a cluster, so that clusters which share a repository do not delete each other's.
type Cluster string

// ClusterOf returns the Cluster with a unique text, the UID of its namespace kube-system.
func ClusterOf(uid string) Cluster {
	sum := sha256.Sum256([]byte(uid))
	return Cluster(hex.EncodeToString(sum[:])[:clusterDigits])
}

// Tag returns the tag of a digest.
func (c Cluster) Tag(d digest.Digest) string { return c.tag(short(d)) }

// tag returns the tag of the first digits of a digest.
func (c Cluster) tag(digits string) string { return "imagepin-" + string(c) + "-" + digits }

// probe returns the tag with which a run finds out whether a registry deletes tags.
func (c Cluster) probe() string { return c.tag("probe") }

// short returns the digits of a digest that its tag has.
func short(d digest.Digest) string { return d.Encoded()[:digestDigits] }
