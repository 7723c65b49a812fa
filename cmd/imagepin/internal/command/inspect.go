package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const inspectDescription = `Shows all details of a reference or an image ID: the rule that applies, each
platform and snapshotter that has it, and each pin with its history and drift.

` + digestHelp + `

Examples:
  imagepin inspect docker.io/library/nginx:1.29
  imagepin inspect nginx:1.29 -o json | jq .pins`

func (a *app) inspectCommand() *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Usage:       "Show the details of a reference or an image ID",
		ArgsUsage:   "REF",
		Description: inspectDescription,
		Action:      a.inspect,
	}
}

func (a *app) inspect(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "REF")
	if err != nil {
		return err
	}
	_, err = show(ctx, a, cmd, api.ControlClient.Inspect, &api.InspectRequest{Ref: args[0]}, a.printInspect)
	return err
}

func (a *app) printInspect(s style, r *api.InspectResponse) error {
	if err := block(a.Out, "",
		field{"Reference", r.GetRef()},
		field{"Rule", ruleText(r.GetRule())},
		field{"Images", noneOf(len(r.GetKeys()))},
		field{"Pins", noneOf(len(r.GetPins()))},
	); err != nil {
		return err
	}
	for _, k := range r.GetKeys() {
		if err := a.printKey(s, k); err != nil {
			return err
		}
	}
	for _, p := range r.GetPins() {
		if err := a.printPin(s, p); err != nil {
			return err
		}
	}
	return nil
}

// noneOf returns "none" for 0. Otherwise the field is omitted, because the items follow.
func noneOf(n int) string {
	if n == 0 {
		return "none"
	}
	return ""
}

func (a *app) printKey(s style, k *api.Key) error {
	fmt.Fprintf(a.Out, "\nImage for %s\n", targetName(k.GetTarget()))
	source := k.GetSource()
	if k.GetHost() != "" {
		source += " from " + k.GetHost()
	}
	return block(a.Out, "  ",
		field{"Reference", k.GetRef()},
		field{"Handlers", strings.Join(k.GetHandlers(), ", ")},
		field{"Ready since", s.since(k.GetReadyAt())},
		field{"Source", source},
		field{"Digest", descriptor(k.GetRoot())},
		field{"Manifest", k.GetManifest()},
		field{"Image ID", k.GetImageId()},
		field{"Chain ID", k.GetChainId()},
		field{"Size", size(k.GetSize())},
		field{"User", k.GetUser()},
		field{"Record", k.GetRecord()},
		field{"Pin scope", k.GetPin()},
	)
}

func (a *app) printPin(s style, p *api.Pin) error {
	fmt.Fprintf(a.Out, "\nPin in scope %s\n", p.GetScope())
	if err := block(a.Out, "  ",
		field{"Reference", p.GetRef()},
		field{"Digest", descriptor(p.GetRoot())},
		field{"Made", s.since(p.GetMadeAt())},
		field{"Made by", madeBy(p)},
		field{"Last used", s.since(p.GetUsedAt())},
		field{"Retain", yesNo(p.GetRetain())},
		field{"Drift", driftText(p.GetDrift())},
		field{"Looked up", lookupText(s, p.GetLookup())},
	); err != nil {
		return err
	}
	if len(p.GetHistory()) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out, "  History:")
	for _, h := range p.GetHistory() {
		fmt.Fprintf(a.Out, "    from %s: %s, by %s\n", stamp(h.GetAt()), h.GetDigest(), h.GetBy())
	}
	return nil
}

func driftText(d *api.Drift) string {
	if d == nil {
		return "no"
	}
	return fmt.Sprintf("tag moved to %s (detected %s)", d.GetDigest(), stamp(d.GetSince()))
}
