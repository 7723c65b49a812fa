package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

const pullDescription = `Pulls and unpacks an image for the platform and snapshotter of a runtime
handler, as a pull by kubelet does. Rules and pins decide which digest is pulled
(see imagepin resolve). Only missing content is fetched and unpacked.

If the registry is not available and pull_behavior allows it, the image on the
node is used. The command prints a warning with the reason to standard error, and
the exit code is 0. With -o json, "fallback" has the reason.

On a terminal, progress is one bar for each blob, otherwise one line for each event.
With -o json, yaml, jsonpath or go-template, it goes to standard error.

Examples:
  imagepin pull docker.io/library/nginx:1.29
  imagepin pull registry.example.com/shop:v7 --handler kata --user deploy
  imagepin pull registry.example.com/shop:v7 --user deploy --password-stdin < token` + credentialHelp

func (a *app) pullCommand() *cli.Command {
	return &cli.Command{
		Name:        "pull",
		Usage:       "Pull and unpack an image for a runtime handler",
		ArgsUsage:   "REF",
		Description: pullDescription,
		Flags: append([]cli.Flag{
			handlerFlag(), &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the reference with its digest"},
		}, credentialFlags()...),
		Action: a.pull,
	}
}

func (a *app) pull(ctx context.Context, cmd *cli.Command) error {
	quiet := cmd.Bool("quiet")
	if quiet && !printsText(cmd) {
		return errors.New("--quiet excludes --output other than table")
	}
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF")
	if err != nil {
		return err
	}
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream if printing failed
		stream, err := c.Pull(ctx, &api.PullRequest{Ref: args[0], Handler: cmd.String("handler"), Credential: credential})
		if err != nil {
			return err
		}
		result, err := follow(ctx, stream, newProgress(a.progressOut(cmd), args[0], a.now))
		if err != nil {
			return err
		}
		result.Fallback = redact(result.GetFallback(), credential)
		print := a.printPulled
		if quiet {
			print = a.printPulledDigest
		}
		if err := a.print(cmd, result, func() error { return print(result) }); err != nil {
			return err
		}
		return errors.Join(a.warnFallback(result), a.warnPlatform(result))
	})
	return redactPassword(err, credential)
}

// progressOut returns the output for progress, which must not mix with the output for programs.
func (a *app) progressOut(cmd *cli.Command) io.Writer {
	if cmd.Bool("quiet") {
		return io.Discard
	}
	if printsText(cmd) {
		return a.Out
	}
	return a.Err
}

// received is one message of a stream, or its end.
type received struct {
	response *api.PullResponse
	err      error
}

// receive returns the messages of stream, up to the error that ends it.
func receive(ctx context.Context, stream grpc.ServerStreamingClient[api.PullResponse]) <-chan received {
	messages := make(chan received)
	go func() {
		for {
			response, err := stream.Recv()
			select {
			case messages <- received{response, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return messages
}

// follow shows the progress of a pull until it ends. ctx is the stream's.
func follow(ctx context.Context, stream grpc.ServerStreamingClient[api.PullResponse], p progress) (*api.PullResult, error) {
	messages := receive(ctx, stream)
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	var result *api.PullResult
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
			if err := p.redraw(); err != nil {
				return nil, err
			}
		case m := <-messages:
			if m.err != nil {
				return ended(m.err, result, p)
			}
			if m.response.GetResult() != nil {
				result = m.response.GetResult()
			}
			if err := p.update(m.response.GetProgress()); err != nil {
				return nil, err
			}
		}
	}
}

// ended handles the end of a pull. The last progress stays on the screen.
func ended(end error, result *api.PullResult, p progress) (*api.PullResult, error) {
	if err := p.redraw(); err != nil {
		return nil, err
	}
	switch {
	case !errors.Is(end, io.EOF):
		return nil, end
	case result == nil:
		return nil, errors.New("containerd ended the pull without a result")
	}
	return result, nil
}

// outcomeTexts describe the outcomes of a pull.
var outcomeTexts = map[string]string{
	"up_to_date": "is up to date",
	"recorded":   "was on the node and is recorded under this reference",
	"unpacked":   "was on the node and is unpacked",
	"fetched":    "is fetched and unpacked",
}

// warnFallback prints a warning if the registry was not available and the image on the node was used.
func (a *app) warnFallback(r *api.PullResult) error {
	if r.GetFallback() == "" {
		return nil
	}
	_, err := fmt.Fprintf(a.Err, "imagepin: warning: the registry did not resolve %s, the image on the node is used: %s\n",
		r.GetKey().GetRef(), printableLines(r.GetFallback()))
	return err
}

// warnPlatform prints a warning if the image is that of another platform.
func (a *app) warnPlatform(r *api.PullResult) error {
	if r.GetOtherPlatform() == "" {
		return nil
	}
	_, err := fmt.Fprintf(a.Err, "imagepin: warning: %s is an image for %s, not for %s: it does not run here without emulation\n",
		r.GetKey().GetRef(), printable(r.GetOtherPlatform()), printable(r.GetKey().GetTarget().GetPlatform()))
	return err
}

// printPulledDigest prints the reference with the digest that was pulled, without its tag.
func (a *app) printPulledDigest(r *api.PullResult) error {
	name, err := imagepin.ParseReference(r.GetKey().GetRef())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%s@%s\n", name.Name(), r.GetKey().GetRoot().GetDigest())
	return err
}

func (a *app) printPulled(r *api.PullResult) error {
	words, ok := outcomeTexts[r.GetDone()]
	switch {
	case r.GetFallback() != "" && r.GetDone() == "up_to_date":
		words = "is on the node"
	case !ok:
		words = r.GetDone()
	}
	k := r.GetKey()
	fmt.Fprintf(a.Out, "%s for %s %s\n", k.GetRef(), targetName(k.GetTarget()), words)
	return block(a.Out, "",
		field{"Digest", k.GetRoot().GetDigest()},
		field{"Manifest", k.GetManifest()},
		field{"Image ID", k.GetImageId()},
		field{"Pin scope", k.GetPin()},
	)
}
