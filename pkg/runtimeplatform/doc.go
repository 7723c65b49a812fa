// Package runtimeplatform maps a CRI runtime handler to the platform and the snapshotter that its images need.
//
// # Handlers and targets
//
// A Kubernetes node can run pods with several runtime handlers: runc, a handler that starts a virtual machine, a
// handler for a foreign architecture, a handler with Hyper-V isolation. Each handler has a platform and a snapshotter,
// and an image is present for a handler only if it is present for both. A handler cannot start an image that is
// unpacked in another snapshotter than its own, and a linux/amd64 manifest does not run in a linux/arm64 guest.
//
// The pair of platform and snapshotter is a [Target]. Handlers with equal targets share their images. A [Set] is built
// from the node's configuration. It returns the target of each handler and all targets of the node. A [Runtime] has a
// matcher, which selects the manifest of an index that fits its target best:
//
//	set, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
//		{Name: "runc", Snapshotter: "overlayfs"},
//		{Name: "kata-arm", Platform: "linux/arm64", Snapshotter: "native"},
//	}, runtimeplatform.Host{})
//	if err != nil { ... }
//
//	rt, err := set.Lookup("kata-arm")
//	if err != nil { ... }
//	fmt.Println(rt.Target) // linux/arm64 on native
//
// # How a manifest is selected
//
// A matcher has two methods. Match reports whether a manifest can run at all. Less reports which of two manifests is
// better. Callers filter the manifests of an index with Match, sort them with Less, and take the first.
//
// The node's own platform uses containerd's default matcher, so the result is the same as in stock containerd: on
// amd64, an image with only a 386 manifest still runs. This is also true for a handler whose configured platform is
// equal to the node's own.
//
// Another platform uses [platforms.Only]: compatible variants match and the best one wins, for example arm/v7 before
// arm/v6.
//
// # Windows
//
// A Windows container contains the user mode part of an operating system, so an image runs only on some builds of the
// kernel. The build is the third number of os.version, as in 10.0.20348.2582. The fourth number, the revision, counts
// monthly updates. Which builds can run depends on the handler's [Isolation]:
//
//   - process: the container shares the node's kernel. The rule is that of containerd/platforms: before Windows Server
//     2022 (build 20348), the build must be the same. From then on a host also runs older builds, back to the long-term
//     release before its own but not before 20348. The revision does not matter.
//   - hypervisor: the container boots its own kernel in a small virtual machine. Builds up to the handler's build run,
//     newer builds do not.
//
// A Windows platform without os.version has the os.version of the node if the node runs Windows. If there is none,
// every build matches.
//
// Of the manifests that match, the best architecture wins, then the newest os.version, then the one with the most
// os.features. Versions are compared as numbers, because as text 10.0.9200 is greater than 10.0.17763 and revision 999
// is greater than 1000. A manifest without os.version matches, as in containerd, but ranks last. A manifest with an
// invalid os.version also ranks last if every build matches. Otherwise it does not match.
//
// The result does not depend on the operating system of the process.
package runtimeplatform
