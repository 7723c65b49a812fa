package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

const applyDescription = `Applies a lock or a bundle to the node. It verifies all of it, imports or pulls
the images that the targets of the node need, and then pins all references of the
lock in one step. If it fails or is interrupted before that step, the node keeps
the lock that it had. "imagepin rollback" goes back to the lock before.

The node remembers --handler with the lock: it applies the next locks, also those of
the drop directories, for the same runtime handlers, until --all-handlers.

A bundle must be a file on the node. "-" reads a lock from standard input.
Without an argument, the drop directories are applied, as at the start of the
node: locks_directory and bundles_directory in the configuration.` + credentialHelp + `

--cancel ends the apply that is running, also one that was detached or that
applies the drop directories, and waits for its end.

Examples:
  imagepin apply images.lock.yaml
  imagepin apply images.lock.yaml --limit-rate 10MiB --handler runc
  imagepin apply bundle.tar.zst --dry-run
  imagepin apply bundle.tar.zst --detach && imagepin lock status
  imagepin apply --cancel
  imagepin apply`

func (a *app) applyCommand() *cli.Command {
	return &cli.Command{
		Name:        "apply",
		Usage:       "Apply a lock or a bundle to the node",
		ArgsUsage:   "[LOCK|BUNDLE|-]",
		Description: applyDescription,
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "handler", Usage: "make the images ready for runtime `HANDLER` only; can be repeated; by default for those of the lock of the node, or all if it has none"},
			&cli.BoolFlag{Name: "all-handlers", Usage: "make the images ready for all runtime handlers again"},
			&cli.BoolFlag{Name: "dry-run", Usage: "verify it, and print what would change"},
			&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "return when the file is opened; lock status shows the progress"},
			&cli.BoolFlag{Name: "cancel", Usage: "end the apply that is running"},
			limitRateFlag(),
			noTruncFlag(),
		}, credentialFlags()...),
		Action: a.apply,
	}
}

func limitRateFlag() cli.Flag {
	return &cli.StringFlag{Name: "limit-rate", Value: "0", Usage: "receive at most `SIZE` per second from registries, for example 10MiB; 0 means no limit"}
}

// sizeOf returns the value of a flag that is a size, in bytes. example is one for the error.
func sizeOf(cmd *cli.Command, flag, example string) (int64, error) {
	return parseSize("--"+flag, cmd.String(flag), example)
}

func parseSize(name, value, example string) (int64, error) {
	n, err := units.RAMInBytes(value)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s %q must be a size such as %s", name, value, example)
	}
	return n, nil
}

func (a *app) apply(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "[LOCK|BUNDLE|-]")
	if err != nil {
		return err
	}
	r := &api.ApplyRequest{Handlers: cmd.StringSlice("handler"), AllHandlers: cmd.Bool("all-handlers"), DryRun: cmd.Bool("dry-run"), Detach: cmd.Bool("detach"), Dropped: len(args) == 0}
	if cmd.Bool("cancel") {
		if len(args) > 0 || r.DryRun || r.Detach {
			return errors.New("--cancel has neither an argument nor --dry-run or --detach")
		}
		return a.cancelApply(ctx, cmd)
	}
	if r.AllHandlers && len(r.Handlers) > 0 {
		return errors.New("--handler and --all-handlers exclude each other")
	}
	if r.DryRun && r.Detach {
		return errors.New("--dry-run and --detach exclude each other")
	}
	if r.BytesPerSecond, err = sizeOf(cmd, "limit-rate", "10MiB"); err != nil {
		return err
	}
	if len(args) > 0 {
		if err := a.readApplied(args[0], r); err != nil {
			return err
		}
	}
	if r.Credential, err = a.credential(ctx, cmd); err != nil {
		return err
	}
	return redactPassword(applyStream(ctx, a, cmd, api.ControlClient.Apply, r, r.GetDryRun()), r.GetCredential())
}

func (a *app) cancelApply(ctx context.Context, cmd *cli.Command) error {
	_, err := show(ctx, a, cmd, api.ControlClient.CancelApply, &api.CancelApplyRequest{}, func(_ style, r *api.CancelApplyResponse) error {
		text := "No lock is being applied."
		if r.GetCanceled() {
			text = "Canceled the apply. To see the lock of the node, run: imagepin lock status"
		}
		_, err := fmt.Fprintln(a.Out, text)
		return err
	})
	return err
}

// readApplied sets the lock or the path of a request. A bundle is read by the node, a lock here.
func (a *app) readApplied(path string, r *api.ApplyRequest) error {
	what, name := "standard input", "standard input"
	if path != "-" {
		isBundle, err := bundle.Is(path)
		if err != nil {
			return err
		}
		if isBundle {
			r.Path, err = filepath.Abs(path)
			return err
		}
		what, name = path, filepath.Base(path)
	}
	r.Name = name
	var err error
	if r.Lock, err = readLockText(path, a.In); err == nil && len(r.Lock) == 0 {
		err = fmt.Errorf("%s is empty", what)
	}
	return err
}

// applyStream calls a method that applies a lock, and prints its progress and its result.
func applyStream[Q any](ctx context.Context, a *app, cmd *cli.Command, do method[Q, grpc.ServerStreamingClient[api.ApplyResponse]], request Q, dry bool) error {
	var result *api.ApplyResult
	err := a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		stream, err := do(c, ctx, request)
		if err != nil {
			return err
		}
		shown := &applyLines{w: a.Err}
		if !printsText(cmd) {
			shown.w = io.Discard
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if m.GetResult() != nil {
				result = m.GetResult()
			} else if err := shown.show(m.GetProgress()); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	if result == nil && !cmd.Bool("detach") {
		return errors.New("containerd ended the call without a result")
	}
	if result == nil {
		out := a.Out
		if !printsText(cmd) {
			out = a.Err
		}
		_, err := fmt.Fprintln(out, "Started. To see the progress, run: imagepin lock status")
		return err
	}
	return a.print(cmd, result, func() error { return a.printApplied(a.style(cmd), result, dry) })
}

// applyLines shows the progress of an apply: one line for each phase, and for each tenth of it.
type applyLines struct {
	w     io.Writer
	phase string
	tenth int64
}

func (p *applyLines) show(now *api.ApplyProgress) error {
	tenth := int64(0)
	if now.GetTotal() > 0 {
		tenth = 10 * now.GetDone() / now.GetTotal()
	}
	if now.GetPhase() == p.phase && tenth == p.tenth {
		return nil
	}
	p.phase, p.tenth = now.GetPhase(), tenth
	_, err := fmt.Fprintln(p.w, applyProgressText(now))
	return err
}

// applyProgressText returns the progress as text: bytes of the bundle, or images.
func applyProgressText(p *api.ApplyProgress) string {
	switch {
	case p.GetTotal() == 0:
		return p.GetPhase()
	case p.GetPhase() == "preparing" || p.GetPhase() == "switching":
		return fmt.Sprintf("%s: %d of %d (images for each target)", p.GetPhase(), p.GetDone(), p.GetTotal())
	}
	return fmt.Sprintf("%s: %s of %s", p.GetPhase(), bytesText(p.GetDone()), bytesText(p.GetTotal()))
}

func (a *app) printApplied(s style, r *api.ApplyResult, dry bool) error {
	id, images := s.digest(r.GetLock()), count(r.GetLocked(), "image")
	handlers := ""
	if h := r.GetHandlers(); len(h) > 0 {
		handlers = " for " + strings.Join(h, ", ")
	}
	switch {
	case r.GetLock() == "":
		fmt.Fprintln(a.Out, "Removed the lock.")
	case dry:
		fmt.Fprintf(a.Out, "Would apply lock %s with %s, and make %d ready%s.\n", id, images, r.GetMadeReady(), handlers)
	default:
		fmt.Fprintf(a.Out, "Applied lock %s with %s, %d made ready%s.\n", id, images, r.GetMadeReady(), handlers)
	}
	if len(r.GetChanges()) == 0 {
		_, err := fmt.Fprintln(a.Out, "No reference has another digest than before.")
		return err
	}
	return a.table([]string{"REFERENCE", "BEFORE", "AFTER"}, mapped(r.GetChanges(), func(c *api.LockChange) []string {
		return []string{s.ref(c.GetRef()), s.digest(c.GetBefore()), s.digest(c.GetAfter())}
	}))
}

const rollbackDescription = `Applies the lock that the node had before the current one. Its images are
retained, so no registry is needed. The current lock becomes the lock before, so
a second rollback undoes the first. An apply that is running is canceled.

Examples:
  imagepin rollback
  imagepin rollback && imagepin lock status`

func (a *app) rollbackCommand() *cli.Command {
	return &cli.Command{
		Name:        "rollback",
		Usage:       "Apply the lock before the current one",
		Description: rollbackDescription,
		Flags:       append([]cli.Flag{limitRateFlag(), noTruncFlag()}, credentialFlags()...),
		Action:      noArguments(a.rollback),
	}
}

func (a *app) rollback(ctx context.Context, cmd *cli.Command) error {
	r := &api.RollbackRequest{}
	var err error
	if r.BytesPerSecond, err = sizeOf(cmd, "limit-rate", "10MiB"); err != nil {
		return err
	}
	if r.Credential, err = a.credential(ctx, cmd); err != nil {
		return err
	}
	return redactPassword(applyStream(ctx, a, cmd, api.ControlClient.Rollback, r, false), r.GetCredential())
}
