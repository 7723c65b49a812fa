package command

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const diffDescription = `Shows what differs between two digests of a reference: layers, sizes and the
configuration (environment, entrypoint, command, user, working directory, labels,
ports, volumes and stop signal), for the platforms of the node's runtime handlers.

Without DIGEST, it compares the pinned digest with that of the tag if the tag has
moved, and otherwise the digest that the pin had before with the pinned one.
Without a pin, it compares the digest on the node with that of the tag in the
registry. With DIGEST, it compares the pinned digest with DIGEST; if the first
argument is a digest too, or a reference by digest, it compares the two.

Manifests and configurations are read from the node, and what is not there from
the registry. It reads no layers, and changes nothing.

Examples:
  imagepin diff docker.io/library/nginx:1.29
  imagepin diff nginx:1.29 3f8a4339aadd --all-platforms
  imagepin diff 0a4d33c8e917 3f8a4339aadd
  imagepin diff nginx:1.29 -o json | jq '.platforms[].config'` + credentialHelp

func (a *app) diffCommand() *cli.Command {
	return &cli.Command{
		Name:        "diff",
		Usage:       "Show what differs between two digests of a reference",
		ArgsUsage:   "REF [DIGEST]",
		Description: diffDescription,
		Flags: append([]cli.Flag{
			scopeFlag("", "; without it, node, or the only scope in which the reference is pinned"),
			&cli.BoolFlag{Name: "all-platforms", Usage: "compare the images of all platforms"},
			noTruncFlag(),
		}, credentialFlags()...),
		Action: a.diff,
	}
}

func (a *app) diff(ctx context.Context, cmd *cli.Command) error {
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF", "[DIGEST]")
	if err != nil {
		return err
	}
	request := &api.DiffRequest{Ref: args[0], Scope: cmd.String("scope"), AllPlatforms: cmd.Bool("all-platforms"), Credential: credential}
	if len(args) > 1 {
		request.Digest = args[1]
	}
	_, err = show(ctx, a, cmd, api.ControlClient.Diff, request, func(s style, r *api.DiffResponse) error {
		_, err := diffText(s, r).WriteTo(a.Out)
		return err
	})
	return err
}

func diffText(s style, r *api.DiffResponse) *bytes.Buffer {
	out := &bytes.Buffer{}
	// A buffer accepts all writes.
	_ = block(out, "",
		field{"Reference", r.GetRef()},
		field{"From", s.digest(r.GetFrom().GetDigest()) + ", " + r.GetFromIs()},
		field{"To", s.digest(r.GetTo().GetDigest()) + ", " + r.GetToIs()},
	)
	omitted := false
	for _, p := range r.GetPlatforms() {
		fmt.Fprintf(out, "\n%s: %s\n", printable(p.GetPlatform()), printable(platformText(s, p)))
		omitted = omitted || !p.GetCompared()
		// All that is in an added or removed image has been added or removed.
		if p.GetCompared() && p.GetChange() == "changed" {
			layersText(out, s, p.GetLayers())
			configText(out, p.GetConfig())
		}
	}
	if omitted {
		fmt.Fprintln(out, "\nNo runtime handler has the platforms that are not compared. To compare them, add\n--all-platforms.")
	}
	return out
}

func platformText(s style, p *api.PlatformDiff) string {
	text := p.GetChange()
	if p.GetChange() == "changed" {
		text = s.digest(p.GetFromManifest()) + " -> " + s.digest(p.GetToManifest())
	}
	switch {
	case !p.GetCompared():
		return text + ", not compared"
	case p.GetChange() == "removed":
		return text + ", " + bytesText(p.GetFromSize())
	case p.GetChange() != "changed":
		return text + ", " + bytesText(p.GetToSize())
	}
	return fmt.Sprintf("%s, %s -> %s (%s)", text, bytesText(p.GetFromSize()), bytesText(p.GetToSize()), difference(p.GetToSize()-p.GetFromSize()))
}

// difference returns a difference of sizes with its sign.
func difference(n int64) string {
	if n < 0 {
		return "-" + bytesText(-n)
	}
	return "+" + bytesText(n)
}

// changeMarks are the marks of changes, as in diff(1).
var changeMarks = map[string]string{"added": "+", "removed": "-", "same": " "}

func layersText(out *bytes.Buffer, s style, layers []*api.LayerDiff) {
	if len(layers) == 0 {
		return
	}
	rows := mapped(layers, func(l *api.LayerDiff) []string {
		return []string{"  " + changeMarks[l.GetChange()] + " layer " + s.digest(l.GetDigest()), bytesText(l.GetSize()), l.GetChange()}
	})
	_ = table(out, rows[0], rows[1:]) // a buffer accepts all writes
}

// configNames are the names of fields of the configuration as text. What follows a name is kept.
var configNames = strings.NewReplacer("_", " ")

func configText(out *bytes.Buffer, fields []*api.ConfigDiff) {
	for _, f := range fields {
		kind, name, _ := strings.Cut(f.GetField(), " ")
		title := strings.TrimSpace(configNames.Replace(kind) + " " + name)
		if f.From != nil {
			fmt.Fprintln(out, configLine("-", title, f.GetFrom()))
		}
		if f.To != nil {
			fmt.Fprintln(out, configLine("+", title, f.GetTo()))
		}
	}
}

// configLine returns a field as one line. An image can have any text in its configuration.
func configLine(mark, title, value string) string {
	line := "  " + mark + " " + printable(title)
	if value == "" {
		return line
	}
	return line + ": " + printable(value)
}
