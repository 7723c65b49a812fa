// Package upstream has what imagepin knows of the insides of containerd, and of kubelet: what no public package of them has. Each
// entry says what it is and why imagepin relies on it. It names its source as "file: name", in containerd if no other module is
// named. Tests compare each entry with its source. To support a new version, read this package, run its tests and
// make test-versions. The keys of containerd's configuration are in package config: TestKeysExistInContainerd in pkg/imagepin/config.
//
// What follows is behavior, with the code that relies on it and a test with the real one. The tests of this package fail if the
// function changes that is named. "The CRI" is containerd's own CRI service.
//
//   - The CRI learns what happens to image records only from events, one after the other. If it cannot handle one, it delays
//     all of the same name for 1 second, then twice as long each time, up to 5 minutes.
//     internal/cri/server/events/events.go: Start and reBackOff
//     WaitVisible in pkg/imagepin/cri. TestContainerBeforeTheCRIKnowsATag in integration/pull, eventMonitor in internal/sim.
//   - It handles the event of a record by writing the record of the image ID, and then the label of the first record. Both may
//     have been removed meanwhile, and come back. It lists an image by what it has read, and resolves names by it.
//     internal/cri/server/images/image_pull.go: UpdateImage and createOrUpdateImageReference
//     internal/cri/store/image/image.go: Update, internal/cri/server/images/service.go: LocalResolve
//     CreateIDRecord, lateRecordWindow, Republish, Find in pkg/imagepin/store; Service in internal/sim/stockcri.
//     TestModelOfStockCRI, TestImagesMatchStock in integration/stock.
//   - When it starts, it reads all records once. It does not try again to read an image that it cannot read.
//     internal/cri/server/images/check.go: CheckImages
//     headStart in plugins/imagepin; Visibility in pkg/imagepin/cri. TestUnreadableAtStart in integration/restart.
//   - It creates a container from the record of the first name that it knows for the image ID: a tag if there is one.
//     internal/cri/server/helpers.go: toContainerdImage
//     createFromImages in pkg/imagepin/cri. TestContainerBeforeTheCRIKnowsATag in integration/pull.
//   - The name of the image that the runtime of a container gets is UserSpecifiedImage, otherwise the first name that it knows.
//     internal/cri/server/container_create.go: createContainer
//     nameForGuest in pkg/imagepin/cri. TestGuestPull in integration/pull.
//   - A credential is only for its server address. User and password precede the identity token and auth. A pull ends if it has
//     open requests, and no bytes for image_pull_progress_timeout.
//     internal/cri/server/images/image_pull.go: ParseAuth and start
//     forHost, stalled in pkg/imagepin/resolve. TestAuth in integration/stock, TestMakingReadyEndsWhenStalled in integration/pull.
//   - The transfer service calls all image verifiers before it fetches anything. An error blocks the pull.
//     core/transfer/local/pull.go: pull. verify in pkg/imagepin/pull. TestVerifier in integration/pull.
//   - A fetch commits a writer that has all bytes without a request, and refuses a blob without bytes.
//     core/remotes/handlers.go: Fetch. Writer, isEmptyLayer in pkg/imagepin/download.
//     TestUnpackWhileDownloading, TestOtherLayerTypes in integration/pull.
//   - The unpacker unpacks the layers of an image in parallel if the snapshotter can rebase. It converts whiteouts for overlayfs.
//     core/unpack/unpacker.go: unpack. inParallel in pkg/imagepin/node. TestParallelWithAnnotations in integration/pull.
//   - What the default differ does with the files of a layer: core/diff/apply/apply.go: Apply, pkg/archive/tar.go: applyNaive
//     Applier, TestSameAsWalkingDiffer in pkg/imagepin/download; Tree, TestAsContainerd in pkg/imagepin/layerfiles.
//   - The content store syncs a blob and the directory of its name, and no directory above it.
//     plugins/content/local/writer.go: Commit. names in pkg/imagepin/node. TestPower in integration/power.
//   - A snapshotter fails if the directory of a new snapshot exists, which a kill has left, and removes it.
//     plugins/snapshots/overlay/overlay.go: createSnapshot
//     directoryExists in pkg/imagepin/pull. TestLeftSnapshotDirectory in integration/restart.
//   - Garbage collection removes a view without its record in its parent, which no call can remove then.
//     core/metadata/gc.go: remove. RemoveViews in pkg/imagepin/health. TestFailpoints in integration/crash.
//   - kubelet recognizes two errors of a pull by the beginning of their text, if their code is Unknown. It looks up the user of an
//     image before it creates a container, without naming the pod.
//     k8s.io/kubernetes/pkg/kubelet/images/image_manager.go: evalCRIPullErr
//     k8s.io/kubernetes/pkg/kubelet/kuberuntime/helpers.go: getImageUser
//     kubeletPrefix, checkImageUser in pkg/imagepin/cri. TestVerifier in integration/pull, TestPinnedUser in integration/pins.
package upstream
