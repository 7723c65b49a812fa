// Package durable makes what snapshotters and the content store have written durable, so that it is on the disk before a
// record says that an image is ready.
//
// containerd's metadata survives a power cut, because bbolt syncs it. The files of snapshots do not: containerd unpacks them
// into the page cache, and the kernel writes them seconds later. A power cut leaves them with their names and 0 bytes, below a
// record that lists the image.
package durable
