package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// checkGuestFiles fails with [imagepin.ImageNotReady] (ErrFailedPrecondition) if a container needs files of an image on the node, but
// guests pull them: those of an image volume, and the names of users. It sets the user of a container that runs as root by name.
func (s *containers) checkGuestFiles(ctx context.Context, c *runtime.ContainerConfig, w containerImage, e imagepin.Entry, handler string) error {
	if e.ChainID == "" || !s.Settings().GuestPull[handler] {
		return nil
	}
	info, err := s.Snapshotter(e.Target.Snapshotter).Stat(s.namespaced(ctx), e.ChainID.String())
	if err != nil || !guestpull.IsEmpty(info) {
		return err
	}
	missing := &imagepin.Error{Reason: imagepin.ImageNotReady, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrFailedPrecondition}
	if w.spec != c.GetImage() {
		missing.Message = fmt.Sprintf("an image volume needs files on the node, and the guests of runtime handler %s pull images themselves", handler)
		missing.Hint = "Run the pod with a handler without guest_pull, or put the files into the image of the container."
		return missing
	}
	switch user := userName(c, e); user {
	case "":
		return nil
	case "root":
		runAsRoot(c)
		return nil
	default:
		missing.Message = fmt.Sprintf("the node cannot look up user %q in the image, because the guests of runtime handler %s pull images themselves",
			imagepin.Bound(user, maxLoggedUser), handler)
		missing.Hint = "Set the number of the user in the pod (runAsUser), or in the image."
		return missing
	}
}

// userName returns the name of the user that a container runs as. It returns "" for a number.
func userName(c *runtime.ContainerConfig, e imagepin.Entry) string {
	security := c.GetLinux().GetSecurityContext()
	switch {
	case security.GetRunAsUser() != nil:
		return ""
	case security.GetRunAsUsername() != "":
		return security.GetRunAsUsername()
	}
	_, name := runAs(e.User)
	return name
}

// runAsRoot sets the number of the user root.
func runAsRoot(c *runtime.ContainerConfig) {
	if c.Linux == nil {
		c.Linux = &runtime.LinuxContainerConfig{}
	}
	if c.Linux.SecurityContext == nil {
		c.Linux.SecurityContext = &runtime.LinuxContainerSecurityContext{}
	}
	c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsUsername = &runtime.Int64Value{}, ""
}
