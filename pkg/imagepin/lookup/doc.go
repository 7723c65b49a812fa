// Package lookup looks up pins at their registries, with the node's own credentials: the digest that the tag has now, and
// whether the registry still has the pinned digest.
//
// A lookup sends HEAD requests only. It records drift, and changes nothing else: no pin is made, moved or marked as used,
// and nothing is fetched. A tag that still has the pinned digest costs one lookup, otherwise the pinned digest costs a
// second one.
//
// Many registries answer 404 for a repository that a credential may not read. So a digest is gone only if the registry
// accepts the node's credentials for the repository, see [Outcome].
package lookup
