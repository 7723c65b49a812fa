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
)

const pullDescription = `Makes an image ready for the platform and snapshotter of a runtime handler, as
kubelet's pull does: which digest that is follows from the rules and pins (see
imagepin resolve). Only what is missing is fetched and unpacked.

On a terminal there is a bar for each blob, elsewhere a line for each thing that
happens. With -o json that goes to standard error, and the result to standard
output.

Examples:
  imagepin pull docker.io/library/nginx:1.29
  imagepin pull registry.example.com/shop:v7 --handler kata --user deploy
  imagepin pull registry.example.com/shop:v7 --user deploy --password-stdin < token` + credentialHelp

func (a *app) pullCommand() *cli.Command {
	return &cli.Command{
		Name:        "pull",
		Usage:       "Make an image ready",
		ArgsUsage:   "REF",
		Description: pullDescription,
		Flags:       append([]cli.Flag{handlerFlag()}, credentialFlags()...),
		Action:      a.pull,
	}
}

func (a *app) pull(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "REF")
	if err != nil {
		return err
	}
	credential, err := a.credential(ctx, cmd)
	if err != nil {
		return err
	}
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream where printing failed
		stream, err := c.Pull(ctx, &api.PullRequest{Ref: args[0], Handler: cmd.String("handler"), Credential: credential})
		if err != nil {
			return err
		}
		result, err := follow(ctx, stream, newProgress(a.progressOut(cmd), args[0], a.now))
		if err != nil {
			return err
		}
		return a.print(cmd, result, func() error { return a.printPulled(result) })
	})
	return hidden(err, credential)
}

// progressOut keeps progress away from what a program reads.
func (a *app) progressOut(cmd *cli.Command) io.Writer {
	if cmd.String("output") == outputJSON {
		return a.Err
	}
	return a.Out
}

// received is one message of a stream, or its end.
type received struct {
	response *api.PullResponse
	err      error
}

// receive gives what comes on stream, up to the error that ends it.
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

// follow shows the progress of a pull until it is done. ctx is the stream's.
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

// ended is the end of a pull, which leaves the last picture of its progress.
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

// doneWords say what a pull did.
var doneWords = map[string]string{
	"nothing":  "was ready already",
	"recorded": "was here already, and is ready under this reference now",
	"unpacked": "was fetched already, and is unpacked now",
	"fetched":  "is fetched and unpacked",
}

func (a *app) printPulled(r *api.PullResult) error {
	words, ok := doneWords[r.GetDone()]
	if !ok {
		words = r.GetDone()
	}
	k := r.GetKey()
	fmt.Fprintf(a.Out, "%s for %s %s\n", k.GetRef(), targetName(k.GetTarget()), words)
	return block(a.Out, "",
		field{"Digest", k.GetRoot().GetDigest()},
		field{"Manifest", k.GetManifest()},
		field{"Image ID", k.GetImageId()},
		field{"Pinned by", k.GetPin()},
	)
}
