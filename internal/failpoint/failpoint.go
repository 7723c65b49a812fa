// Package failpoint names the places at which a test can kill the process.
//
// There is one between any two durable writes: what a crash leaves there has to
// be made good by the next start. Production binaries have none: [Reach] does
// something only in binaries built with the tag failpoints.
//
// In those the environment says where the process dies:
//
//	IMAGEPIN_FAILPOINT=pull.recorded     the first time pull.recorded is reached
//	IMAGEPIN_FAILPOINT=store.write:3     the third time
//	IMAGEPIN_FAILPOINT=*:17              at the seventeenth failpoint, whichever it is
//	IMAGEPIN_FAILPOINT=@/some/file       as the file says, which may come, go and change
//
// With a file, the names of the failpoints that are reached are appended to
// /some/file.trace, and the one at which the process dies to /some/file.died.
package failpoint

// Names are all failpoints, as they are written in calls of [Reach]. What
// begins with a verb is before a write, what ends in one is after it.
var Names = []string{
	// A call has a lease.
	"lease.created", // it holds nothing
	"lease.deleted",

	// A key is made ready: pull, make.
	"pull.fetch",    // before each blob that is fetched
	"pull.chosen",   // indexes are fetched, and the manifest is known
	"pull.unpacked", // everything is fetched and unpacked
	"pull.kept",     // an index keeps the next one below it
	"pull.made",     // nothing but the records is missing
	"pull.recorded", // the records are written, and the lease is there
	"pull.visible",  // the CRI service behind knows the image

	// Damaged content is replaced.
	"replace.held",      // what its record keeps alive is leased
	"replace.fetched",   // it is fetched, and not in its place
	"replace.deleted",   // the damaged record is gone
	"replace.collected", // and the file
	"replace.written",   // the new content is in its place

	// A deep check.
	"check.viewed", // there is a view of a snapshot
	"check.remove", // before each snapshot that cannot be used is removed

	// Image records change.
	"store.write",     // before each record that is written
	"store.commit",    // all are written, in a transaction that is not committed
	"store.committed", // and is
	"store.notified",  // the events are published

	// Keys are removed.
	"remove.recorded", // the records are gone
	"remove.release",  // before each label that keeps a snapshot is dropped
	"remove.released", // all are
	"collect.leased",  // the lease whose end starts the collection is there
	"collect.done",    // what nothing needs is collected

	// Pins.
	"pin.write",   // before a pin is made or moved
	"pin.written", // it is
	"pin.remove",  // before it is removed
	"pin.removed", // it is

	// What pins retain.
	"retain.leased",  // the lease is there, and holds nothing
	"retain.add",     // before each resource that it is to hold
	"retain.done",    // it holds all
	"retain.release", // before it is deleted
	"retain.dropped", // it is

	// Refresh.
	"refresh.pulled", // all targets are ready, and nothing has moved
	"refresh.pinned", // a pin has moved, and the tag has not
	"refresh.moved",  // the tag has moved for a target

	// A pod is about to use an image.
	"use.leased", // the lease that holds it is there

	// Start and reconcile.
	"start.leftover",   // before each lease of a killed call is deleted
	"start.unlabel",     // before each label is taken off that stands on the wrong record
	"start.orphan",     // before each snapshot is let go of that a killed removal has left
	"untagged.remove",  // a record of an image ID that no key accounts for is found
	"untagged.removed", // it is removed, and what it kept is not collected
	"adopt.found",      // other tools' images are found, and not recorded
	"adopt.recorded",   // they are
	"repair.unpacked",    // what was lost is unpacked again
	"repair.recorded",    // and recorded
	"repair.drop",        // before a lost key is dropped
	"repair.dropped",     // it is
	"sync.forgotten",   // what another tool has removed is out of the records
	"sync.unseated",    // or carried by another record
}
