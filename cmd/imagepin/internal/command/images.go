package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const imagesDescription = `Lists the images of the node, one line for each reference and target (platform
and snapshotter). HANDLERS are the runtime handlers with this target, PIN the
scope of the pin that holds the reference at DIGEST. "node at 5f1e2d4a8b90" is a
pin at another digest, as after "imagepin pin undo": the next pull uses that. Pods
cannot use an image that is "damaged" (see imagepin check), wait for one that is
"comparing" after a boot, and no runtime handler has the target of one that is
"unused". "-o wide" adds the target, MANIFEST, IMAGE ID, and when it was pulled.

` + digestHelp + `

A reference by digest is listed only if no tag has its image for the target, or
with --all, or as JSON or YAML.

Examples:
  imagepin images
  imagepin images --ref 'docker.io/library/*' --handler kata -o wide
  imagepin images --watch
  imagepin images -q
  imagepin images -o json | jq -r '.keys[] | [.ref, .manifest] | @tsv'
  imagepin images -o 'go-template={{range .keys}}{{println .ref .imageId}}{{end}}'`

func (a *app) imagesCommand() *cli.Command {
	return &cli.Command{
		Name:        "images",
		Aliases:     []string{"ls"},
		Usage:       "List the images of the node",
		Description: imagesDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ref", Usage: "only references that match `GLOB` as a whole (docker.io/library/nginx:1.29): * matches any text without a slash, ** any text"},
			&cli.StringFlag{Name: "handler", Usage: "only images for runtime `HANDLER`"},
			&cli.BoolFlag{Name: "all", Usage: "also references by digest whose image has a tag"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "only image IDs, each once"},
			&cli.BoolFlag{Name: "digests", Usage: "complete digests in DIGEST"},
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "print changes until interrupted"},
			noTruncFlag(),
		},
		Action: noArguments(a.images),
	}
}

func (a *app) images(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("quiet") && (cmd.Bool("watch") || !printsText(cmd)) {
		return errors.New("--quiet excludes --watch, and --output other than table")
	}
	if cmd.Bool("watch") {
		return a.watchImages(ctx, cmd)
	}
	_, err := show(ctx, a, cmd, listImages, imagesRequest(cmd), func(_ style, r *api.ImagesResponse) error { return a.printImages(cmd, r.GetKeys()) })
	return err
}

func imagesRequest(cmd *cli.Command) *api.ImagesRequest {
	return &api.ImagesRequest{RefGlob: cmd.String("ref"), Handler: cmd.String("handler")}
}

func (a *app) printImages(cmd *cli.Command, keys []*api.Key) error {
	if cmd.Bool("quiet") {
		return a.printImageIDs(keys)
	}
	columns := imageColumns(cmd, a.style(cmd))
	rows := mapped(listedKeys(cmd, keys), func(k *api.Key) []string { return cells(columns, k) })
	return (&imageTable{w: a.Out, header: a.header(titles(columns))}).print(rows)
}

func (a *app) printImageIDs(keys []*api.Key) error {
	printed := make(map[string]bool)
	for _, k := range keys {
		id := k.GetImageId()
		if printed[id] {
			continue
		}
		printed[id] = true
		if _, err := fmt.Fprintln(a.Out, id); err != nil {
			return err
		}
	}
	return nil
}

// listedKeys returns the keys that a table lists: without --all, none of a digest if a tag has its image for the
// same target.
func listedKeys(cmd *cli.Command, keys []*api.Key) []*api.Key {
	if cmd.Bool("all") {
		return keys
	}
	type image struct{ id, platform, snapshotter string }
	of := func(k *api.Key) image {
		return image{k.GetImageId(), k.GetTarget().GetPlatform(), k.GetTarget().GetSnapshotter()}
	}
	tagged := make(map[image]bool)
	for _, k := range keys {
		if !byDigest(k) {
			tagged[of(k)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k *api.Key) bool { return byDigest(k) && tagged[of(k)] })
}

// byDigest reports whether the reference of k has a digest.
func byDigest(k *api.Key) bool { return strings.Contains(k.GetRef(), "@") }

// column is a column of the table of images.
type column struct {
	title string
	cell  func(*api.Key) string
}

// imageColumns returns the columns for the flags of cmd.
func imageColumns(cmd *cli.Command, s style) []column {
	wide := cmd.String("output") == outputWide
	columns := []column{{"REFERENCE", func(k *api.Key) string { return s.ref(k.GetRef()) }}}
	if wide {
		columns = append(columns,
			column{"PLATFORM", func(k *api.Key) string { return k.GetTarget().GetPlatform() }},
			column{"SNAPSHOTTER", func(k *api.Key) string { return k.GetTarget().GetSnapshotter() }})
	}
	root := s
	root.noTrunc = root.noTrunc || cmd.Bool("digests")
	columns = append(columns, column{"HANDLERS", handlersText}, column{"DIGEST", func(k *api.Key) string { return root.digest(k.GetRoot().GetDigest()) }})
	if wide {
		columns = append(columns,
			column{"MANIFEST", func(k *api.Key) string { return s.digest(k.GetManifest()) }},
			column{"IMAGE ID", func(k *api.Key) string { return s.digest(k.GetImageId()) }})
	}
	columns = append(columns, column{"SIZE", func(k *api.Key) string { return orNone(size(k.GetSize())) }})
	if wide {
		columns = append(columns, column{"PULLED", func(k *api.Key) string { return s.time(k.GetReadyAt()) }})
	}
	return append(columns, column{"PIN", pinColumn})
}

// pinColumn returns the scope of the pin of a key. After a pin was moved, the key has its digest from the next pull on.
func pinColumn(k *api.Key) string {
	if k.GetPin() == "" && k.GetOtherPin() != "" {
		return k.GetOtherPin() + " at " + short(k.GetOtherPinDigest())
	}
	return orNone(k.GetPin())
}

// handlersText returns the runtime handlers of a key, and its state if it is not ready.
func handlersText(k *api.Key) string {
	text := orNone(strings.Join(k.GetHandlers(), ","))
	if state := k.GetState(); state != "" && state != "ready" {
		text += " (" + state + ")"
	}
	return text
}

// header returns the header of a table, or nil if the user wants none.
func (a *app) header(titles []string) []string {
	if a.noHeaders {
		return nil
	}
	return titles
}

func titles(columns []column) []string {
	return mapped(columns, func(c column) string { return c.title })
}

func cells(columns []column, k *api.Key) []string {
	return mapped(columns, func(c column) string { return c.cell(k) })
}
