package cri

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/guestpull"
)

// checkGuestFiles fails with [imagepin.ImageNotReady] (ErrFailedPrecondition) if a container needs files of an image on the node, but
// guests pull them: those of an image volume, and the names of users and groups. It replaces the name root by the number.
func (s *containers) checkGuestFiles(ctx context.Context, c *runtime.ContainerConfig, w containerImage, e imagepin.Entry, handler string) error {
	if e.ChainID == "" || !s.Settings().GuestPull[handler] {
		return nil
	}
	empty, err := guestpull.AnyEmpty(s.namespaced(ctx), s.Snapshotter(e.Target.Snapshotter), e.ChainID.String())
	if err != nil {
		return fmt.Errorf("image %s: %w", e.Ref, err)
	}
	if !empty {
		return nil
	}
	missing := &imagepin.Error{Reason: imagepin.ImageNotReady, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrFailedPrecondition}
	if w.spec != c.GetImage() {
		missing.Message = fmt.Sprintf("an image volume needs files on the node, and the guests of runtime handler %s pull images themselves", handler)
		missing.Hint = "Run the pod with a handler without guest_pull, or put the files into the image of the container."
		return missing
	}
	kind, name := runAsNumbers(c, e)
	if name == "" {
		return nil
	}
	missing.Message = fmt.Sprintf("the node cannot look up %s %q in the image, because the guests of runtime handler %s pull images themselves",
		kind, imagepin.Bound(name, maxLoggedUser), handler)
	missing.Hint = "Set the number of the user in the pod (runAsUser), or in the image."
	return missing
}

// runAsNumbers replaces the names of the user and the group that upstream would look up in the image by numbers. It returns the kind and the
// name of one that it does not know: it knows only root. Upstream prefers RunAsUsername to RunAsUser (GenerateUserString in
// internal/cri/util/util.go).
func runAsNumbers(c *runtime.ContainerConfig, e imagepin.Entry) (kind, unknown string) {
	security := c.GetLinux().GetSecurityContext()
	given := security.GetRunAsUsername()
	if given == "" {
		if security.GetRunAsUser() != nil || security.GetRunAsGroup() != nil {
			return "", ""
		}
		given = e.User
	}
	user, group, _ := strings.Cut(given, ":")
	uid, ok := numberOf(user)
	if !ok {
		return "user", user
	}
	gid, ok := numberOf(group)
	if !ok {
		return "group", group
	}
	if user != "root" && group != "root" {
		return "", ""
	}
	if security.GetRunAsGroup() != nil || group == "" {
		gid = security.GetRunAsGroup()
	}
	setUser(c, uid, gid)
	return "", ""
}

// numberOf returns the number of a user or a group. ok is false for a name other than root.
func numberOf(name string) (_ *runtime.Int64Value, ok bool) {
	if name == "" || name == "root" {
		return &runtime.Int64Value{}, true
	}
	n, err := strconv.ParseUint(name, 10, 32)
	return &runtime.Int64Value{Value: int64(n)}, err == nil
}

// setUser sets the numbers of the user and the group.
func setUser(c *runtime.ContainerConfig, uid, gid *runtime.Int64Value) {
	if c.Linux == nil {
		c.Linux = &runtime.LinuxContainerConfig{}
	}
	if c.Linux.SecurityContext == nil {
		c.Linux.SecurityContext = &runtime.LinuxContainerSecurityContext{}
	}
	security := c.Linux.SecurityContext
	security.RunAsUser, security.RunAsUsername, security.RunAsGroup = uid, "", gid
}
