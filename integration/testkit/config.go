package testkit

import "github.com/imagepin/imagepin/integration/node"

// BehaviorRules sets each pull behavior for the repositories whose path contains its name. The timeout is the shortest that is
// allowed.
const BehaviorRules = `
[plugins."io.containerd.imagepin.v1.images"]
manifest_pull_timeout = "30s"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/always/**"]
pull_behavior = "always"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/once/**"]
pull_behavior = "once"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/prefer-cached/**"]
pull_behavior = "prefer-cached"
`

// The names of sections of the configuration.
const (
	OurSection      = "io.containerd.imagepin.v1.images"
	ImagesSection   = "io.containerd.cri.v1.images"
	RuntimeSection  = "io.containerd.cri.v1.runtime"
	TransferSection = "io.containerd.transfer.v1.local"
)

// RetainRules pins and retains references below pinned/.
const RetainRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/pinned/**"]
version_consistency = "node"
retain = true
`

// GuestHandler makes [Second] a handler whose guests pull images themselves.
const GuestHandler = `
[plugins."io.containerd.imagepin.v1.images".handlers.second]
guest_pull = true
`

// Foreign is a platform that is not this machine's. Its images run on this machine, see [images.App].
const Foreign = "linux/s390x"

// Second is a handler with another snapshotter than the default handler.
const Second = "second"

// OnNative is the handler [Second] with the native snapshotter.
var OnNative = []node.Handler{{Name: Second, Snapshotter: "native"}}

// HandlerName returns the name of a handler. An image call that names the default handler is strict.
func HandlerName(handler string) string {
	if handler == "" {
		return node.DefaultHandler
	}
	return handler
}

// PinRules pins references in pinned/ for the node, and retains them.
const PinRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
  match = ["**/pinned/*"]
  version_consistency = "node"
  retain = true
`

// ConsistencyRules sets the version consistency by the first parts of the repository.
const ConsistencyRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/node/**"]
version_consistency = "node"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/kept/**"]
version_consistency = "node"
retain = true
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/workload/**"]
version_consistency = "workload"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/open/**"]
version_consistency = "node"
allow_pod_override = true
`

// OtherTargets are handlers with another snapshotter and another platform than the default handler.
var OtherTargets = []node.Handler{{Name: "native", Snapshotter: "native"}, {Name: "arm", Platform: "linux/arm64"}}
