package upstream

// Labels that the CRI writes to the records of images. It lists only records that have the first one, and kubelet does not
// remove an image with the second one. imagepin writes the same labels, so that the CRI has nothing to change.
const (
	ImageLabel  = "io.cri-containerd.image"  // internal/cri/labels/labels.go: ImageLabelKey
	Managed     = "managed"                  // internal/cri/labels/labels.go: ImageLabelValue
	PinnedLabel = "io.cri-containerd.pinned" // internal/cri/labels/labels.go: PinnedImageLabelKey
	Pinned      = "pinned"                   // internal/cri/labels/labels.go: PinnedImageLabelValue
)

// Labels that garbage collection reads. The references are prefixes: the value is what the blob with the label keeps. The
// unpacker sets that of a snapshot on an image's configuration, followed by the snapshotter. A fetch sets those of content on
// indexes and manifests, the typed ones for what has a known media type. imagepin reads them, and releases snapshots by them.
const (
	SnapshotRef = "containerd.io/gc.ref.snapshot." // core/metadata/gc.go: labelGCSnapRef
	ContentRef  = "containerd.io/gc.ref.content"   // core/metadata/gc.go: labelGCContentRef
	LayerRef    = ContentRef + ".l."               // core/images/mediatypes.go: ChildGCLabels
	ManifestRef = ContentRef + ".m."               // core/images/mediatypes.go: ChildGCLabels
	ReferrerRef = ContentRef + ".referrer."        // core/images/mediatypes.go: ChildGCLabels
	ConfigRef   = ContentRef + ".config"           // core/images/mediatypes.go: ChildGCLabels
	ExpireLabel = "containerd.io/gc.expire"        // core/metadata/gc.go: labelGCExpire
	// FlatLabel makes a lease hold only the resources that it lists, and not what these reference.
	FlatLabel = "containerd.io/gc.flat" // core/metadata/gc.go: labelGCFlat
)

// LayerLabel is on the snapshot in which a layer is to be unpacked. Its value is the name of the snapshot that is committed then.
const LayerLabel = "containerd.io/snapshot.ref" // core/snapshots/snapshotter.go: LabelSnapshotRef, since 2.4

// Types of the resources of a lease: core/metadata/leases.go: parseLeaseResource. The snapshotter follows SnapshotType.
const (
	ContentType  = "content"    // core/metadata/buckets.go: bucketKeyObjectContent
	IngestType   = "ingests"    // core/metadata/buckets.go: bucketKeyObjectIngests
	SnapshotType = "snapshots/" // see TestLeaseTypes
)
