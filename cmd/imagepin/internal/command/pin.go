package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const pinDescription = `A pin fixes a tag to a digest for the pods of a scope. The first use of the tag makes
it, with version_consistency "node" or "workload", or "imagepin pin set". SCOPE is
"node" for all pods, "workload/…" for those of one revision, or "lock" for the lock
of the node. MADE BY "cluster" is a copy of an ImagePin, with the node that created
it: kubectl imagepin changes it.

Examples:
  imagepin pin ls
  imagepin pin set docker.io/library/nginx:1.29 sha256:5f1… --retain
  imagepin pin rm docker.io/library/nginx:1.29`

func (a *app) pinCommand() *cli.Command {
	return group(&cli.Command{
		Name:        "pin",
		Usage:       "List, set and remove pins",
		Description: pinDescription,
		Commands:    []*cli.Command{a.pinListCommand(), a.pinSetCommand(), a.pinUndoCommand(), a.pinRemoveCommand()},
	})
}

const pinListDescription = `Lists the pins of the node. DIGEST is as the registry returned it for the tag. DRIFT
is the digest that the tag last had, if it is not the pinned one. LOOKED UP is when
the registry was last asked since the start: by a pull, by --check with the node's
credentials, or in the background with lookup_interval. "gone" means that it no
longer has the pinned digest, "no access" that it does not accept the credentials,
"no answer" that it was not available.

Exit code:
  0   success
  1   with --check, a registry did not answer; or the command failed
  10  with --check, a tag has moved, or a digest is gone

Examples:
  imagepin pin ls
  imagepin pin ls --check
  imagepin pin ls --ref '**/shop:*' --scope node
  imagepin pin ls -o json | jq '.pins[] | select(.drift)'`

func (a *app) pinListCommand() *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Aliases:     []string{"list"},
		Usage:       "List pins",
		Description: pinListDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ref", Usage: "only pins of references that match `GLOB`: * matches any text without a slash, ** any text"},
			scopesFlag(),
			&cli.BoolFlag{Name: "check", Usage: "look up the pins at their registries first"},
			noTruncFlag(),
		},
		Action: noArguments(a.pinList),
	}
}

func (a *app) pinList(ctx context.Context, cmd *cli.Command) error {
	list := listPins
	if cmd.Bool("check") {
		list = checkPins
	}
	r, err := show(ctx, a, cmd, list, &api.PinsRequest{RefGlob: cmd.String("ref"), Scope: scopes(cmd)}, a.printPins)
	if err != nil || !cmd.Bool("check") {
		return err
	}
	return checkedPins(r.GetPins())
}

func (a *app) printPins(s style, r *api.PinsResponse) error {
	return a.table([]string{"SCOPE", "REFERENCE", "DIGEST", "MADE BY", "MADE", "USED", "RETAIN", "DRIFT", "LOOKED UP"}, mapped(r.GetPins(), func(p *api.Pin) []string {
		return []string{
			p.GetScope(), s.ref(p.GetRef()), s.digest(p.GetRoot().GetDigest()), madeBy(p),
			s.time(p.GetMadeAt()), s.time(p.GetUsedAt()), yesNo(p.GetRetain()), s.digest(p.GetDrift().GetDigest()), s.lookedUp(p.GetLookup()),
		}
	}))
}

// madeBy describes what made a pin.
func madeBy(p *api.Pin) string {
	switch {
	case p.GetProvisional():
		return p.GetMadeBy() + " (provisional)"
	case p.GetClaimer() != "":
		return p.GetMadeBy() + " (" + p.GetClaimer() + ")"
	}
	return p.GetMadeBy()
}

const pinSetDescription = `Pins a tag to a digest, from the next pull or container on. Running containers are
not affected. DIGEST is the one that "imagepin images" shows, whole or its 12 digits:
what the registry returns for a tag. MANIFEST, of one platform, is rejected if its
index is known, because the pin would break other platforms; --force allows it.

Examples:
  imagepin pin set docker.io/library/nginx:1.29 sha256:5f1…
  imagepin pin set shop:v7 sha256:5f1… --scope workload/shop/pod-template-hash=7d4b9c
  imagepin pin set shop:v7 sha256:5f1… --retain    # also keep its content
  imagepin pin set shop:v7 5f1e2d4a8b90            # a digest from "imagepin images"` + credentialHelp

func (a *app) pinSetCommand() *cli.Command {
	return &cli.Command{
		Name:        "set",
		Usage:       "Pin a tag to a digest",
		ArgsUsage:   "REF DIGEST",
		Description: pinSetDescription,
		Flags: append([]cli.Flag{
			scopeFlag(scopeNode, ""),
			&cli.BoolFlag{Name: "retain", Usage: "retain the content, even if the image is removed or the registry deletes it; a rule with retain = true does the same; without this flag, an existing pin keeps its retention"},
			&cli.BoolFlag{Name: "force", Usage: "pin to the manifest of one platform, although its index is known"},
		}, credentialFlags()...),
		Action: a.pinSet,
	}
}

func (a *app) pinSet(ctx context.Context, cmd *cli.Command) error {
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF", "DIGEST")
	if err != nil {
		return err
	}
	request := &api.SetPinRequest{
		Scope: cmd.String("scope"), Ref: args[0], Digest: args[1], Credential: credential, Force: cmd.Bool("force"),
	}
	if cmd.IsSet("retain") {
		request.Retain = proto.Bool(cmd.Bool("retain"))
	}
	_, err = show(ctx, a, cmd, api.ControlClient.SetPin, request, a.printPinSet)
	return err
}

func (a *app) printPinSet(_ style, r *api.SetPinResponse) error {
	p := r.GetPin()
	line := fmt.Sprintf("Pinned %s to %s (scope %s", p.GetRef(), p.GetRoot().GetDigest(), p.GetScope())
	switch r.GetPrevious() {
	case "":
	case p.GetRoot().GetDigest():
		line += ", unchanged"
	default:
		line += ", was " + r.GetPrevious()
	}
	if p.GetRetain() {
		line += ", retained"
	}
	fmt.Fprintln(a.Out, line+")")
	return a.printOtherScopes(r.GetOthers(), r.GetOtherScopes())
}

// printOtherScopes names the pins of the reference in other scopes, of which first are the first ones.
func (a *app) printOtherScopes(n int64, first []string) error {
	if n == 0 {
		return nil
	}
	more := ""
	if n > int64(len(first)) {
		more = ", …"
	}
	_, err := fmt.Fprintf(a.Out, "%s in other scopes, unchanged: %s%s\n", count(n, "pin"), strings.Join(first, ", "), more)
	return err
}

const pinUndoDescription = `Moves a pin back to the digest that it had before its last change, as "imagepin
pin set" does. A second undo returns to the current digest, as with kubectl rollout
undo. "imagepin inspect" shows the history of a pin. Running containers are not
affected.

Examples:
  imagepin pin undo docker.io/library/nginx:1.29
  imagepin pin undo shop:v7 --scope workload/shop/pod-template-hash=7d4b9c` + credentialHelp

func (a *app) pinUndoCommand() *cli.Command {
	return &cli.Command{
		Name:        "undo",
		Usage:       "Move a pin back to its previous digest",
		ArgsUsage:   "REF",
		Description: pinUndoDescription,
		Flags:       append([]cli.Flag{scopeFlag(scopeNode, "")}, credentialFlags()...),
		Action:      a.pinUndo,
	}
}

func (a *app) pinUndo(ctx context.Context, cmd *cli.Command) error {
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF")
	if err != nil {
		return err
	}
	_, err = show(ctx, a, cmd, api.ControlClient.UndoPin, &api.UndoPinRequest{Scope: cmd.String("scope"), Ref: args[0], Credential: credential}, a.printPinSet)
	return err
}

const pinRemoveDescription = `Removes pins. From the next pull on, the tags follow the registry again. If
version_consistency applies to a reference, that pull makes a new pin.

If a pin cannot be removed, the others are, and the exit code is 1. -o json prints
one object for each pin.

Examples:
  imagepin pin rm docker.io/library/nginx:1.29 docker.io/library/redis:8
  imagepin pin rm shop:v7 --scope workload/shop/pod-template-hash=7d4b9c`

func (a *app) pinRemoveCommand() *cli.Command {
	return &cli.Command{
		Name:        "rm",
		Aliases:     []string{"remove", "unpin"},
		Usage:       "Remove pins: the tags follow the registry again",
		ArgsUsage:   "REF...",
		Description: pinRemoveDescription,
		Flags:       []cli.Flag{scopeFlag(scopeNode, "")},
		Action:      a.pinRemove,
	}
}

func (a *app) pinRemove(ctx context.Context, cmd *cli.Command) error {
	refs, err := references(cmd)
	if err != nil {
		return err
	}
	var removed []*api.RemovePinResponse
	failed, err := a.callEach(ctx, cmd, refs, func(ctx context.Context, c api.ControlClient, ref string) error {
		r, err := c.RemovePin(ctx, &api.RemovePinRequest{Scope: cmd.String("scope"), Ref: ref})
		if err == nil {
			removed = append(removed, r)
		}
		return err
	})
	return errors.Join(append(failed, a.printRemovedPins(cmd, removed), err)...)
}

func (a *app) printRemovedPins(cmd *cli.Command, removed []*api.RemovePinResponse) error {
	for i, r := range removed {
		if i > 0 && cmd.String("output") == outputYAML {
			fmt.Fprintln(a.Out, "---")
		}
		if err := a.print(cmd, r, func() error { return a.printRemovedPin(r) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printRemovedPin(r *api.RemovePinResponse) error {
	p := r.GetPin()
	fmt.Fprintf(a.Out, "Unpinned %s (scope %s, was %s)\n", p.GetRef(), p.GetScope(), p.GetRoot().GetDigest())
	return a.printOtherScopes(r.GetOthers(), r.GetOtherScopes())
}
