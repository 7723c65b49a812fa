// Package pull pulls and unpacks images for a target, and records them as ready keys.
//
// A [Puller] serves requests. It normalizes the reference, merges concurrent identical requests, asks package decide
// which digest the reference resolves to, and passes the result to a [Maker] as a [Job]. A Maker runs these steps:
//
//   - verify: every image verifier plugin must allow the image (verify.go).
//   - choose: find the target's manifest in the index (choose.go).
//   - fetch and unpack: the unpacker runs containerd's transfer service for the blobs and the snapshot that the node
//     does not have (unpacker.go). The fetcher reads from registries (fetcher.go).
//   - record: write the image records and the label of the key (attempt.go, package store).
//   - wait until upstream, containerd's own CRI service, has the image ([Maker.WaitVisible]).
//
// For a key that is ready, the Maker skips the steps that are not needed, see [Outcome]. If a part of the image is
// removed or the reference is pinned during a pull, the Maker tries again.
//
// A lease of the pull holds everything from the first blob to the record. A pull that fails, is canceled or is killed
// leaves no record, no snapshot and no pin. What it has fetched is held for a day by another lease, and the next pull fetches
// the rest (resume.go, ingests.go), unless the error is about the content.
//
// Two checks apply to content that is on the node already:
//
//   - vouching: a caller gets content of the node only if its own registry serves it, or if its credential was accepted
//     for it (vouching.go).
//   - damage: a blob whose file does not match its digest is fetched again (damage.go).
//
// [Settings] is the configuration of one pull. [Locks] keeps pulls, uses and removals on the node apart.
package pull
