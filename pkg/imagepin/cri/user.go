package cri

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// userOf splits the user of an image's configuration as containerd's CRI does
// (getUserFromImage in internal/cri/server/images/image_status.go): a number
// is a UID, anything else a name, and a group is left out.
func userOf(user string) (*runtime.Int64Value, string) {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		return nil, ""
	}
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &runtime.Int64Value{Value: uid}, ""
	}
	return nil, user
}

// userOfAnother fails where the pin of a container's pod decides for another image
// than the one whose ID the caller gives, and the container is to run as the user
// of that one. kubelet looks the user up before it creates the container; after it
// was restarted it cannot say for which pod, and a pin can be made in between. Its
// next try is answered for the pod. The error is [imagepin.ImageNotReady]
// (ErrUnavailable).
func userOfAnother(c *runtime.ContainerConfig, w want, runs imagepin.Entry) error {
	if _, err := digest.Parse(w.spec.GetImage()); err != nil || w.entry.ImageID == runs.ImageID {
		return nil
	}
	asked := c.GetLinux().GetSecurityContext()
	uid, name := runAs(w.entry.User)
	if mine, mineByName := runAs(runs.User); mine == uid && mineByName == name {
		return nil
	}
	if asked.GetRunAsUsername() != name || asked.GetRunAsUser() == nil != (name != "") || asked.GetRunAsUser().GetValue() != uid {
		return nil // the pod says itself who it runs as
	}
	return &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: w.entry.Ref, Target: runs.Target.String(), Class: errdefs.ErrUnavailable,
		Message: fmt.Sprintf("its pod runs %s, and the user %q of another image was looked up for it", w.root.Digest, w.entry.User),
		Hint:    "Try again, as kubelet does: the next look-up is answered for the pod.",
	}
}

// runAs is the user that kubelet has a container run as by the user of its image,
// where the pod does not say (getImageUser in pkg/kubelet/kuberuntime).
func runAs(user string) (uid int64, name string) {
	id, name := userOf(user)
	return id.GetValue(), name
}
