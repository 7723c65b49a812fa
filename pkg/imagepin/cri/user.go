package cri

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// maxLoggedUser limits the length of a user in the log and in errors, in bytes. An image can have a user of any length,
// and quoting makes it longer.
const maxLoggedUser = 128

// checkImageUser fails if kubelet has looked up the user of another image than the one that the container runs. kubelet
// looks up the user before it creates the container, without naming the pod, and gets that of the image that was
// answered last for the name. When kubelet retries, the lookup is answered for the pod. The error is
// [imagepin.ImageNotReady] (ErrUnavailable).
//
// kubelet takes a user name only from an image. A number can also be the pod's own (runAsUser), so it does not show what
// was looked up. It fails only if a pin selects an image other than the one whose ID the caller gives, and the number is
// the user of the caller's image: after kubelet restarts, the lookup does not identify the pod, and a pin can be created
// in between.
func checkImageUser(c *runtime.ContainerConfig, w containerImage, runs imagepin.Entry) error {
	security := c.GetLinux().GetSecurityContext()
	mine, mineByName := runAs(runs.User)
	if given := security.GetRunAsUsername(); given != "" && given != mineByName && c.GetLabels()[upstream.ContainerNameLabel] != "" {
		return otherUser(w, runs, given)
	}
	if _, err := digest.Parse(w.spec.GetImage()); err != nil || w.entry.ImageID == runs.ImageID {
		return nil
	}
	uid, name := runAs(w.entry.User)
	if mine == uid && mineByName == name {
		return nil
	}
	if security.GetRunAsUsername() != name || security.GetRunAsUser() == nil != (name != "") || security.GetRunAsUser().GetValue() != uid {
		return nil // the pod specifies its user
	}
	return otherUser(w, runs, w.entry.User)
}

// otherUser returns the error for a container that is to run as the user of another image.
func otherUser(w containerImage, runs imagepin.Entry, user string) error {
	return &imagepin.Error{
		Reason: imagepin.ImageNotReady, Ref: w.entry.Ref, Target: runs.Target.String(), Class: errdefs.ErrUnavailable,
		Message: fmt.Sprintf("the pod runs %s, but kubelet looked up the user %q of another image for it", w.Root.Digest,
			imagepin.Bound(user, maxLoggedUser)),
		Hint: "Try again, as kubelet does: the next lookup is answered for the pod.",
	}
}

// runAs returns the user that kubelet runs a container as if the pod does not specify one, from the user of the image.
func runAs(user string) (uid int64, name string) {
	id, name := upstream.ImageUser(user)
	return id.GetValue(), name
}
