// Package failpoint names the points where a test can kill the process.
//
// There is one between any two durable writes. The next start must repair what a crash leaves there. [Reach] has an
// effect only in binaries built with the tag failpoints. Production binaries have no failpoints.
//
// The environment selects the point where the process dies:
//
//	IMAGEPIN_FAILPOINT=pull.recorded     the first time that pull.recorded is reached
//	IMAGEPIN_FAILPOINT=store.write:3     the third time
//	IMAGEPIN_FAILPOINT=*:17              the seventeenth failpoint of any name
//	IMAGEPIN_FAILPOINT=@/some/file       as in the file, which can appear, disappear and change
//
// With a file, the names of the reached failpoints are appended to /some/file.trace, and the name of the one where the
// process dies to /some/file.died.
package failpoint

// Names lists all failpoints, as in calls of [Reach]. A name that begins with a verb is before a write, a name that
// ends in one is after it.
var Names = []string{
	// Leases of calls.
	"lease.created", // the lease holds nothing
	"lease.deleted",

	// Pull and unpack.
	"pull.fetch",    // before each blob that is fetched
	"pull.chosen",   // the indexes are fetched, and the manifest is known
	"pull.unpacked", // all content is fetched and unpacked
	"pull.kept",     // an index keeps the next one
	"pull.made",     // only the records are missing
	"pull.recorded", // the records are written, and the lease exists
	"pull.visible",  // upstream, containerd's own CRI service, has the image

	// Snapshots without files, for guests that pull images themselves.
	"guestpull.prepared", // before each snapshot is committed

	// Downloading layers while they are unpacked.
	"download.begin",     // before a download that goes on after the fetch has returned
	"download.committed", // the layer is in the content store, and its snapshot is not committed

	// Replacing damaged content.
	"replace.fetched",   // the content is fetched, but not written
	"replace.held",      // the lease holds what the content's record keeps
	"replace.deleted",   // the damaged record is deleted
	"replace.collected", // the damaged file is deleted
	"replace.written",   // the new content is written

	// Deep checks.
	"check.viewed", // a snapshot has a view
	"check.remove", // before each unusable snapshot is removed

	// Replacing the files of damaged snapshots.
	"exchange.hidden",    // the key is recorded as damaged
	"exchange.synced",    // the new snapshots are committed and on the disk
	"exchange.directory", // before each directory is exchanged
	"exchange.durable",   // all directories are exchanged, which is on the disk
	"exchange.forgotten", // the damage is forgotten, the key is still recorded as damaged

	// Image records.
	"store.write",      // before each record is written
	"store.commit",     // all records are written, in a transaction that is not committed
	"store.committed",  // the transaction is committed
	"store.notified",   // the events are published
	"store.superseded", // keys of an old default snapshotter are removed from the records

	// Removing keys.
	"remove.recorded", // the records are removed
	"remove.release",  // before each label that keeps a snapshot is removed
	"remove.released", // all these labels are removed
	"collect.leased",  // the lease exists whose deletion starts garbage collection
	"collect.done",    // garbage is collected

	// Pins.
	"pin.write",   // before a pin is created or moved
	"pin.written", // after
	"pin.remove",  // before a pin is removed
	"pin.removed", // after

	// Pins in the Kubernetes API.
	"claim.create",  // before an ImagePin is created
	"claim.created", // there is an ImagePin, and the node has no copy of it

	// Retained content.
	"retain.leased",  // the lease exists, or its transaction is not committed
	"retain.add",     // before each resource is added to the lease
	"retain.done",    // the lease holds all resources
	"retain.unused",  // before each snapshot of an old default snapshotter is removed from the lease
	"retain.release", // before the lease is deleted
	"retain.dropped", // after

	// Installation on a node.
	"install.write",      // the copy of a file is kept, and the record names it, before the file is written or removed
	"install.written",    // after
	"install.reloaded",   // systemd has read the units
	"install.enabled",    // the units are enabled
	"install.restarted",  // a service is restarted, and may not be healthy
	"install.serving",    // imagepin serve is healthy, and kubelet does not use it
	"install.commit",     // all services are healthy, before the record says so
	"install.committed",  // after, and the copies exist
	"install.restarting", // containerd is not active, and systemd is to kill it when it restarts it
	"install.restored",   // a file is restored
	"install.undone",     // all files are restored, and no service is restarted
	"install.left",       // containerd's metadata has nothing of imagepin any more
	"install.remove",     // before each file is removed

	// Refresh.
	"refresh.pulled", // all targets are ready, and nothing has moved
	"refresh.pinned", // a pin has moved, but the tag has not
	"refresh.moved",  // the tag has moved for a target

	// Applying a lock.
	"apply.imported", // the content of a bundle is in the content store
	"apply.kept",     // the digests of the new lock are retained, and no image is ready
	"apply.made",     // after each image that is ready for a target
	"apply.ready",    // all images are ready, and nothing has switched
	"lock.stored",    // the new lock is in the content store, and its record has the old one
	"lock.switched",  // the record has the new lock, and no pin in memory has changed
	"apply.tagged",   // after each tag that has the digest of the new lock

	// Using an image for a pod.
	"use.leased", // the lease holds the image

	// Start and reconciliation.
	"start.leftover",   // before each lease of a killed call is deleted
	"start.collected",  // nothing of an earlier boot is left, and that is not noted
	"start.unlabel",    // before each label on the wrong record is removed
	"start.orphan",     // before each snapshot that a killed removal left is released
	"untagged.remove",  // a record of an image ID without a key is found
	"untagged.removed", // the record is removed, and its content is not collected
	"adopt.found",      // other tools' images are found, but not recorded
	"adopt.recorded",   // other tools' images are recorded
	"repair.unpacked",  // a lost snapshot is unpacked again
	"repair.recorded",  // and recorded
	"repair.drop",      // before a lost key is dropped
	"repair.dropped",   // after
	"sync.forgotten",   // what another tool has removed is removed from the records
	"sync.unseated",    // or moved to another record
}
