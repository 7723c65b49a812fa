// Package runtimeplatform says which variant of an image a runtime handler
// needs, and where it has to be unpacked.
//
// # Handlers and targets
//
// A Kubernetes node runs pods under several runtime handlers: runc, a handler
// that starts a virtual machine, one for a foreign architecture, one with
// Hyper-V isolation. Each handler has a platform and a snapshotter, and both
// decide what "the image is present" means. An image unpacked for overlayfs
// cannot be started by a handler that mounts from another snapshotter, and the
// manifest that fits linux/amd64 does not run in a linux/arm64 guest.
//
// The pair of the two is a [Target]. Handlers with equal targets share their
// images. A [Set] is built once from the node's configuration and then answers
// which target a handler has, which targets exist, and, by the [Runtime]'s
// matcher, which manifest of an index fits a target best:
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
// # How a manifest is chosen
//
// A matcher answers two questions. Match: can this manifest run at all? Less:
// of two that can, which one is better? Callers filter by the first, sort by
// the second and take one.
//
// The node's own platform is matched by containerd's default matcher, so that
// what stock containerd would choose is chosen: on amd64 an image with nothing
// but a 386 manifest still runs. A handler whose platform is spelled out but
// comes to the same is no different.
//
// Another platform is matched by [platforms.Only]: compatible variants are
// accepted and the best one wins, for example arm/v7 before arm/v6.
//
// # Windows
//
// A Windows container brings the user mode half of an operating system, so an
// image fits only some builds of the kernel. Its build is the third number of
// os.version, as in 10.0.20348.2582; the fourth, the revision, counts monthly
// updates. What can run depends on the handler's [Isolation]:
//
//   - process: the container shares the node's kernel. containerd/platforms
//     knows the rule: before Windows Server 2022 (build 20348) the build has to
//     be the same; from then on a host also runs older builds, back to the
//     long-term release before its own but not past 20348. The revision does
//     not matter.
//   - hypervisor: the container boots a kernel of its own in a small virtual
//     machine. Any build up to the handler's runs, newer ones do not.
//
// A Windows platform configured without os.version has that of the node, if the
// node runs Windows. If that gives none either, every build matches.
//
// Of the manifests that match, the best architecture wins, of these the newest
// os.version, and of these the one that uses more os.features. Versions are
// compared number by number, because as text 10.0.9200 is greater than
// 10.0.17763 and revision 999 greater than 1000. A manifest that has no
// os.version makes no promise to be broken, so it matches, as it does in
// containerd, but ranks last. So does one whose os.version cannot be read,
// where no build is asked for; where one is, it does not match.
//
// All of this is independent of the operating system the process runs on.
package runtimeplatform
