// Package protect keeps digests that a cluster needs in their registries: each gets a tag of its own in its repository, so that
// no retention rule and no push to another tag leaves it without one. A tag goes when nothing has needed its digest for a time.
//
// There is no lock. Two runs set the same tags to the same digests. A run that deletes tags reads the cluster again before it
// does, and after it has: what another run relied on meanwhile gets its tag back. [State] has the tags that a cluster has set.
package protect
