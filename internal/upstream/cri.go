package upstream

import (
	"strconv"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Annotations that select the handler of a pod.
const (
	// HandlerAnnotation names the handler for clients that do not set ImageSpec.runtime_handler.
	HandlerAnnotation = "io.containerd.cri.runtime-handler" // internal/cri/annotations/annotations.go: RuntimeHandler
	// UntrustedAnnotation makes the CRI use UntrustedHandler if a pod names no handler.
	UntrustedAnnotation = "io.kubernetes.cri.untrusted-workload" // internal/cri/annotations/annotations.go: UntrustedWorkload
	UntrustedHandler    = "untrusted"                            // internal/cri/config/config.go: RuntimeUntrusted
)

// ImageNameAnnotation is on the runtime spec of a container: the name from which a guest pulls the image.
const ImageNameAnnotation = "io.kubernetes.cri.image-name" // internal/cri/annotations/annotations.go: ImageName

// ImageUser parses the user of an image's configuration: a number is a UID, anything else is a name, and a group is dropped.
// kubelet runs the container as this user. internal/cri/server/images/image_status.go: getUserFromImage
func ImageUser(user string) (*runtime.Int64Value, string) {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		return nil, ""
	}
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &runtime.Int64Value{Value: uid}, ""
	}
	return nil, user
}
