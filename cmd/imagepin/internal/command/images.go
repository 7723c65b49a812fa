package command

import (
	"context"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const imagesDescription = `Lists the images of the node, one line for each reference, platform and
snapshotter. MANIFEST is the digest of the manifest for the platform, IMAGE ID
the digest of its configuration, PIN the scope of the pin that holds the
reference at this digest.

Examples:
  imagepin images
  imagepin images --ref 'docker.io/library/*' --handler kata
  imagepin images --no-trunc
  imagepin images -o json | jq -r '.keys[] | [.ref, .manifest] | @tsv'`

func (a *app) imagesCommand() *cli.Command {
	return &cli.Command{
		Name:        "images",
		Aliases:     []string{"ls"},
		Usage:       "List the images of the node",
		Description: imagesDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ref", Usage: "only references that match `GLOB` as a whole (docker.io/library/nginx:1.29): * matches any text without a slash, ** any text"},
			&cli.StringFlag{Name: "handler", Usage: "only images for runtime `HANDLER`"},
			noTruncFlag(),
		},
		Action: a.images,
	}
}

func (a *app) images(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	return a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		stream, err := c.StreamImages(ctx, &api.ImagesRequest{
			RefGlob: cmd.String("ref"), Handler: cmd.String("handler"),
		})
		if err != nil {
			return err
		}
		response := &api.ImagesResponse{}
		if err := receiveAll(stream, response); err != nil {
			return err
		}
		return a.print(cmd, response, func() error { return a.printImages(a.style(cmd), response.GetKeys()) })
	})
}

func (a *app) printImages(s style, keys []*api.Key) error {
	rows := make([][]string, len(keys))
	for i, k := range keys {
		rows[i] = []string{
			s.ref(k.GetRef()), k.GetTarget().GetPlatform(), k.GetTarget().GetSnapshotter(),
			orNone(strings.Join(k.GetHandlers(), ",")), s.digest(k.GetManifest()), s.digest(k.GetImageId()),
			s.time(k.GetReadyAt()), orNone(k.GetPin()),
		}
	}
	return table(a.Out, []string{
		"REFERENCE", "PLATFORM", "SNAPSHOTTER", "HANDLERS", "MANIFEST", "IMAGE ID", "PULLED", "PIN",
	}, rows)
}
