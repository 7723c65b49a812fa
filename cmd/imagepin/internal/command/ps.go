package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const psDescription = `Lists the running containers and their image volumes (CONTAINER:PATH). DIGEST is
what a container runs, PINNED TO what a new container of the pod would run by its
pin. DIFFERS is "yes" if these are different images, as after "imagepin refresh":
restart the pod to run the pinned digest. It is "unknown" if the node no longer
knows the digest that a container runs, or which pin applies, and "-" without a
pin. SINCE is when the pin moved, or when the container was created if that was
later. No request is sent to a registry.

` + digestHelp + `

"-o wide" adds the scope of the pin, what made it, IMAGE ID and the container ID.

Exit code:
  0   no listed container differs
  10  a listed container differs

Examples:
  imagepin ps
  imagepin ps --differs
  imagepin ps --pod 'shop/*' --ref 'docker.io/library/*:*' --handler kata
  imagepin ps --differs -o json | jq -r '.containers[] | [.namespace, .pod] | @tsv'`

func (a *app) psCommand() *cli.Command {
	return &cli.Command{
		Name:        "ps",
		Usage:       "List running containers, and compare them with their pins",
		Description: psDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "differs", Usage: "only containers that run another image than their pin"},
			&cli.StringFlag{Name: "ref", Usage: "only references that match `GLOB` as a whole (docker.io/library/nginx:1.29): * matches any text without a slash, ** any text"},
			&cli.StringFlag{Name: "pod", Usage: "only pods that match `GLOB`: NAMESPACE/NAME, or NAME in all namespaces; * matches any text without a slash"},
			&cli.StringFlag{Name: "handler", Usage: "only containers of runtime `HANDLER`"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "only container IDs, each once"},
			noTruncFlag(),
		},
		Action: noArguments(a.ps),
	}
}

func (a *app) ps(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("quiet") && !printsText(cmd) {
		return errors.New("--quiet excludes --output other than table")
	}
	request := &api.ContainersRequest{RefGlob: cmd.String("ref"), Handler: cmd.String("handler"), PodGlob: cmd.String("pod"), Differs: cmd.Bool("differs")}
	resp, err := show(ctx, a, cmd, api.ControlClient.Containers, request, func(s style, r *api.ContainersResponse) error {
		if cmd.Bool("quiet") {
			return a.printContainerIDs(r.GetContainers())
		}
		return a.printContainers(s, r.GetContainers(), cmd.String("output") == outputWide)
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(resp.GetContainers(), (*api.Container).GetDiffers) {
		return exitError(exitChanged)
	}
	return nil
}

func (a *app) printContainerIDs(containers []*api.Container) error {
	last := ""
	for _, c := range containers { // the image volumes of a container follow it
		if c.GetId() == last {
			continue
		}
		last = c.GetId()
		if _, err := fmt.Fprintln(a.Out, last); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printContainers(s style, containers []*api.Container, wide bool) error {
	printed := make(map[string]bool)
	for _, c := range containers {
		if text := c.GetError(); text != "" && !printed[text] {
			printed[text] = true
			fmt.Fprintf(a.Err, "imagepin: cannot find the pin of %s: %s\n", c.GetRef(), printableLines(text))
		}
	}
	header := []string{"POD", "CONTAINER", "IMAGE", "HANDLER", "DIGEST", "PINNED TO", "DIFFERS", "SINCE"}
	if wide {
		header = append(header, "SCOPE", "MADE BY", "IMAGE ID", "CONTAINER ID")
	}
	return a.table(header, mapped(containers, func(c *api.Container) []string {
		row := []string{
			c.GetNamespace() + "/" + c.GetPod(), containerName(c), s.containerImage(c), c.GetHandler(), s.digest(c.GetDigest()),
			s.digest(c.GetPin().GetRoot().GetDigest()), differsText(c), s.time(c.GetSince()),
		}
		if wide {
			row = append(row, orNone(c.GetPin().GetScope()), orNone(madeBy(c.GetPin())), s.digest(c.GetImageId()), s.containerID(c.GetId()))
		}
		return row
	}))
}

// containerName returns the name of a container, and the path of its image volume.
func containerName(c *api.Container) string {
	if c.GetVolume() == "" {
		return c.GetContainer()
	}
	return c.GetContainer() + ":" + c.GetVolume()
}

// containerImage returns the reference of a container, or the image ID if the pod names no reference.
func (s style) containerImage(c *api.Container) string {
	if c.GetRef() != "" {
		return s.ref(c.GetRef())
	}
	return s.digest(c.GetImageId())
}

// containerID truncates the ID of a container as crictl does.
func (s style) containerID(id string) string {
	if s.noTrunc || len(id) <= shortContainerID {
		return id
	}
	return id[:shortContainerID]
}

// shortContainerID is the length of a truncated container ID in crictl.
const shortContainerID = 13

func differsText(c *api.Container) string {
	switch {
	case c.GetDiffers():
		return "yes"
	case c.GetError() != "", c.GetPin() != nil && c.GetDigest() == "":
		return "unknown"
	case c.GetPin() == nil:
		return none
	}
	return "no"
}
