// Package download unpacks layers while they are downloaded.
//
// containerd's transfer service downloads a layer, writes it to the content store, and then unpacks it from there. Here
// [Store] is the content store of the transfer service. It takes over the download of a layer, so that the unpacker
// calls [Applier] at once. Applier reads the bytes of the download through a window in memory while the download also
// writes them to the content store. It returns when the content store has verified and committed the layer. So bytes are
// unpacked before they are verified, and no snapshot is committed whose layer is damaged or incomplete.
//
// A download ends with its pull, see [With]. It holds what the unpacker's fetch holds: the lock of the blob, a slot of
// max_concurrent_downloads, and the lease of the pull.
package download
