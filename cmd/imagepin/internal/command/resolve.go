package command

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const resolveDescription = `Shows what a pull would use now, and why: the rule that applies, the pin, the
digest in the registry, the digest and the manifest to run, and the parts that
are missing on the node. It changes nothing.

Examples:
  imagepin resolve docker.io/library/nginx:1.29
  imagepin resolve nginx:1.29 --handler kata
  imagepin resolve nginx:1.29 --scope workload/shop/pod-template-hash=7d4b9c
  imagepin resolve nginx:1.29 --pod shop/web-7d4b9c-x8x2b` + credentialHelp

func (a *app) resolveCommand() *cli.Command {
	return &cli.Command{
		Name:        "resolve",
		Usage:       "Show what a pull would use, and why",
		ArgsUsage:   "REF",
		Description: resolveDescription,
		Flags: append([]cli.Flag{
			handlerFlag(), scopeFlag("", "; without it, that of a pull without a pod"),
			&cli.StringFlag{Name: "pod", Usage: "`NAMESPACE/NAME` of a pod of this node: resolve for its handler, its scope and its annotations"},
		}, credentialFlags()...),
		Action: a.resolve,
	}
}

func (a *app) resolve(ctx context.Context, cmd *cli.Command) error {
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF")
	if err != nil {
		return err
	}
	_, err = show(ctx, a, cmd, api.ControlClient.Resolve, &api.ResolveRequest{
		Ref: args[0], Handler: cmd.String("handler"), Scope: cmd.String("scope"), Pod: cmd.String("pod"), Credential: credential,
	}, a.printResolve)
	return err
}

func (a *app) printResolve(_ style, r *api.ResolveResponse) error {
	if err := block(a.Out, "",
		field{"Reference", r.GetRef()},
		field{"Target", targetName(r.GetTarget())},
		field{"Pod", r.GetPod()},
		field{"Rule", ruleText(r.GetRule())},
		field{"Ignored", ignoredText(r.GetIgnored())},
		field{"Pin", pinText(r.GetPin())},
		field{"Registry", registryText(r)},
		field{"Would run", orNone(descriptor(r.GetRoot()))},
		field{"Reason", r.GetWhy()},
		field{"Manifest", cmp.Or(r.GetManifest(), "unknown until the index is fetched")},
		field{"Ready", yesNo(r.GetReady())},
		field{"Guest pulls", r.GetGuestPulls()},
		field{"Missing", noneOf(len(r.GetMissing()))},
	); err != nil {
		return err
	}
	if len(r.GetMissing()) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return a.table([]string{"MISSING", "NAME", "SIZE"}, mapped(r.GetMissing(), func(m *api.Missing) []string {
		return []string{m.GetWhat(), m.GetName(), orNone(size(m.GetSize()))}
	}))
}

// ignoredText says which annotations of a pod do not apply.
func ignoredText(annotations []string) string {
	if len(annotations) == 0 {
		return ""
	}
	return strings.Join(annotations, ", ") + ": not allowed by the rule, or not valid"
}

func pinText(p *api.Pin) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%s, scope %s, since %s by %s", p.GetRoot().GetDigest(), p.GetScope(), stamp(p.GetMadeAt()), madeBy(p))
}

func registryText(r *api.ResolveResponse) string {
	switch {
	case r.GetRegistryError() != "":
		return "failed: " + firstLine(r.GetRegistryError())
	case r.GetRegistry() == nil:
		return "not queried"
	case r.GetHost() == "":
		return descriptor(r.GetRegistry())
	}
	return descriptor(r.GetRegistry()) + ", from " + r.GetHost()
}
