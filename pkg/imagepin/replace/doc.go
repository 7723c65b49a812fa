// Package replace replaces the files of a damaged snapshot that other snapshots stand on, such as those of exited
// containers. containerd can neither rename a snapshot nor change its parent, so the snapshot stays: the layers are
// unpacked again into snapshots of a lease, and then the directories of the two are exchanged (RENAME_EXCHANGE in
// rename(2)).
//
// The directory of an overlayfs snapshot is a lower directory of all snapshots above it. The kernel allows changes to a
// lower directory while nothing mounts it, if neither metacopy, index, xino nor redirect_dir are used
// (Documentation/filesystems/overlayfs.rst, Changes to underlying filesystems). A native snapshot is a copy of its parent
// and its layer. What stands on it is a copy of its own, which stays as it is.
package replace
