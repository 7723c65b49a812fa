package upstream

import "strings"

// Overlayfs is the snapshotter for which the unpacker handles the whiteouts in layers that are unpacked in parallel.
const Overlayfs = "overlayfs" // core/unpack/unpacker.go: unpack

// Blockfile is the snapshotter that reads the file of the parent to make a snapshot.
const Blockfile = "blockfile" // plugins/snapshots/blockfile/plugin/plugin.go: init

// Snapshotters are those that are built into containerd: cmd/containerd/builtins. Some distributions leave some out. None of them
// fetches layers lazily.
var Snapshotters = []string{Blockfile, "btrfs", "devmapper", "erofs", "native", Overlayfs, "windows", "windows-lcow", "zfs"}

// Exports of plugins, by which imagepin learns what it cannot ask.
const (
	// RemoteAnnotations is exported by a snapshotter that fetches layers lazily and needs annotations that identify them.
	RemoteAnnotations = "enable_remote_snapshot_annotations" // core/transfer/local/pull.go: pull
	// ProxyAddress is the address of the process of a snapshotter of proxy_plugins.
	ProxyAddress          = "address"               // cmd/containerd/server/server.go: LoadPlugins
	RegistryConfigPath    = "RegistryConfigPath"    // plugins/cri/images/plugin.go: init, since 2.4
	DiscardUnpackedLayers = "DiscardUnpackedLayers" // plugins/cri/images/plugin.go: init, since 2.4
)

// Names in the directory of the content store, whose files imagepin checks without a call for each: blobs/ALGORITHM/DIGEST, and
// for a write ingest/HASH/ref and ingest/HASH/data. The reference is NAMESPACE/NUMBER/NAME: core/metadata/snapshot.go: createKey
const (
	BlobsDir   = "blobs"  // plugins/content/local/store.go: blobPath
	IngestDir  = "ingest" // plugins/content/local/store.go: ingestRoot
	IngestRef  = "ref"    // plugins/content/local/store.go: ingestPaths
	IngestData = "data"   // plugins/content/local/store.go: ingestPaths
)

// SnapshotsDir is the directory of a snapshotter with a directory for each snapshot: overlayfs, native and erofs.
// plugins/snapshots/native/native.go: getSnapshotDir
// plugins/snapshots/erofs/erofs.go: upperPath
const SnapshotsDir = "snapshots" // plugins/snapshots/overlay/overlay.go: upperPath

// BlobLock begins the keys of blobs in the duplication suppressor of the unpacker.
const BlobLock = "blob://" // core/unpack/unpacker.go: makeBlobDescriptorKey

// LowerDirs returns the lower directories in the options of an overlay mount, highest first, as the overlayfs snapshotter and the
// kernel have them: plugins/snapshots/overlay/overlay.go: mounts
func LowerDirs(options []string) []string {
	for _, option := range options {
		if dirs, ok := strings.CutPrefix(option, "lowerdir="); ok {
			return strings.Split(dirs, ":")
		}
	}
	return nil
}
