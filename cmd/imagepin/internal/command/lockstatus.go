package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const lockStatusDescription = `Compares the lock of the node with its images and its running containers. STATE
is "running", "ready", or "missing" if the image is not ready for a target. It
also lists the digests of images that the lock does not name, and containers that
run another digest than the lock has for their reference. DIGEST, LOCKED and RUNS
are as the registry returns them for a tag; where the node does not know it, RUNS is
"image" with an IMAGE ID.

Exit code:
  0   all images of the lock are ready, and no container runs another digest, or
      the node has no lock and --expect is not used
  10  an image is missing, a container runs another digest, the last apply failed,
      or the node does not have the expected lock

Examples:
  imagepin lock status
  imagepin lock status -o json | jq .counts
  imagepin lock status --expect images.lock.yaml    # also 10 if another lock is applied`

func (a *app) lockStatusCommand() *cli.Command {
	return &cli.Command{
		Name:        "status",
		Usage:       "Compare the lock of the node with what it has and runs",
		Description: lockStatusDescription,
		Flags: []cli.Flag{
			outputFlag(),
			&cli.StringFlag{Name: "expect", Usage: "`LOCK` that the node must have: a file, or the digest of a lock"},
			noTruncFlag(),
		},
		Action: noArguments(a.lockStatus),
	}
}

func (a *app) lockStatus(ctx context.Context, cmd *cli.Command) error {
	expected, err := expectedLock(cmd.String("expect"))
	if err != nil {
		return err
	}
	st, err := show(ctx, a, cmd, api.ControlClient.LockStatus, &api.LockStatusRequest{}, a.printLockStatus)
	if err != nil {
		return err
	}
	if has := st.GetLock().GetDigest(); expected != "" && has != expected.String() {
		fmt.Fprintf(a.Err, "imagepin: the lock of the node is %s, expected %s\n", cmp.Or(has, "none"), expected)
		return exitError(exitChanged)
	}
	if c := st.GetCounts(); c.GetMissing() > 0 || c.GetDrifted() > 0 || st.GetFailed() != nil || st.GetUnreadable() != "" {
		return exitError(exitChanged)
	}
	return nil
}

// expectedLock returns the digest of a lock that is given by its digest or as a file. It is empty if none is given.
func expectedLock(given string) (digest.Digest, error) {
	if given == "" {
		return "", nil
	}
	if d, err := digest.Parse(given); err == nil {
		return d, nil
	}
	text, err := os.ReadFile(given)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("--expect %q is neither a file nor the whole digest of a lock", given)
	}
	if err != nil {
		return "", err
	}
	l, err := lock.Parse(text)
	if err != nil {
		return "", err
	}
	return l.Digest()
}

func (a *app) printLockStatus(s style, st *api.LockStatusResponse) error {
	fields := []field{{"Lock", s.lock(st.GetLock())}, {"Previous", s.lock(st.GetPrevious())}}
	if p := st.GetApplying(); p != nil {
		fields = append(fields, field{"Applying", s.digest(p.GetLock()) + ", " + applyProgressText(p)})
	}
	if f := st.GetFailed(); f != nil {
		fields = append(fields, field{"Failed", fmt.Sprintf("%s (%s): %s", printable(f.GetName()), s.ago(f.GetAt()), printable(firstLine(f.GetError())))})
	}
	fields = append(fields, field{"Unreadable", printable(st.GetUnreadable())})
	if st.GetLock() != nil {
		c := st.GetCounts()
		fields = append(fields, field{"Images", fmt.Sprintf("%d locked, %d ready, %d running, %d missing, %d extra", c.GetLocked(), c.GetReady(), c.GetRunning(), c.GetMissing(), c.GetExtra())},
			field{"Containers", fmt.Sprintf("%d run another digest than the lock", c.GetDrifted())})
	}
	if err := block(a.Out, "", fields...); err != nil || st.GetLock() == nil {
		return err
	}
	return errors.Join(a.printLocked(s, st.GetImages()), a.printExtra(s, st.GetExtra()), a.printDriftedContainers(s, st.GetDrifted()))
}

// lock returns one line about a lock.
func (s style) lock(l *api.Lock) string {
	if l == nil {
		return "none"
	}
	from := "images from their registries"
	if l.GetBundle() {
		from = "images from a bundle"
	}
	text := fmt.Sprintf("%s, applied %s, from %s, %s", s.digest(l.GetDigest()), s.since(l.GetAppliedAt()), printable(orNone(l.GetName())), from)
	if h := l.GetHandlers(); len(h) > 0 {
		text += ", for " + strings.Join(h, ", ")
	}
	return text
}

func (a *app) printLocked(s style, images []*api.LockedImage) error {
	fmt.Fprintln(a.Out)
	return a.table([]string{"REFERENCE", "DIGEST", "STATE", "CONTAINERS", "MISSING FOR"}, mapped(images, func(image *api.LockedImage) []string {
		return []string{s.ref(image.GetRef()), s.digest(image.GetDigest()), image.GetState(), fmt.Sprint(image.GetContainers()), targetNames(image.GetMissing())}
	}))
}

func targetNames(targets []*api.Target) string {
	return orNone(strings.Join(mapped(targets, targetName), ", "))
}

func (a *app) printExtra(s style, images []*api.ExtraImage) error {
	if len(images) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return a.table([]string{"NOT IN THE LOCK", "CONTAINERS", "REFERENCE"}, mapped(images, func(image *api.ExtraImage) []string {
		return []string{s.digestOrImage(image.GetDigest(), image.GetImageId()), fmt.Sprint(image.GetContainers()), orNone(s.ref(strings.Join(image.GetRefs()[:min(1, len(image.GetRefs()))], "")))}
	}))
}

func (a *app) printDriftedContainers(s style, containers []*api.DriftedContainer) error {
	if len(containers) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return a.table([]string{"POD", "CONTAINER", "REFERENCE", "LOCKED", "RUNS"}, mapped(containers, func(c *api.DriftedContainer) []string {
		return []string{c.GetNamespace() + "/" + c.GetPod(), c.GetContainer(), s.ref(c.GetRef()), s.digest(c.GetLocked()), s.digestOrImage(c.GetDigest(), c.GetImageId())}
	}))
}

// digestOrImage returns a digest, or the image ID if the node does not know the digest.
func (s style) digestOrImage(digest, imageID string) string {
	if digest == "" && imageID != "" {
		return "image " + s.digest(imageID)
	}
	return s.digest(digest)
}

const lockRemoveDescription = `Removes the lock of the node, and the lock before it. Tags then follow their
registries and other pins again, and the content of the locks is not retained
any more. Running pods are not affected. With --previous, only the lock before
the current one is removed, and rollback is not possible any more. In both cases,
kubelet's garbage collection or "imagepin prune" removes the images. An apply that
is running is canceled.

Examples:
  imagepin lock rm
  imagepin lock rm --previous`

func (a *app) lockRemoveCommand() *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Aliases:     []string{"remove"},
		Usage:       "Remove the lock of the node",
		Description: lockRemoveDescription,
		Flags: []cli.Flag{
			outputFlag(),
			&cli.BoolFlag{Name: "previous", Usage: "remove only the lock before the current one"},
			noTruncFlag(),
		},
		Action: noArguments(a.lockRemove),
	}
}

func (a *app) lockRemove(ctx context.Context, cmd *cli.Command) error {
	remove := func(c api.ControlClient, ctx context.Context, request *api.RemoveLockRequest, opts ...grpc.CallOption) (*api.ApplyResult, error) {
		response, err := c.RemoveLock(ctx, request, opts...)
		return response.GetResult(), err
	}
	_, err := show(ctx, a, cmd, remove, &api.RemoveLockRequest{Previous: cmd.Bool("previous")}, func(s style, r *api.ApplyResult) error {
		if cmd.Bool("previous") {
			_, err := fmt.Fprintln(a.Out, "Removed the lock before the current one. To remove images that only it had, run: imagepin prune")
			return err
		}
		return a.printApplied(s, r, false)
	})
	return err
}
