package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// watchInterval is the time between two lists of --watch.
const watchInterval = 2 * time.Second

// Types of a change, as in kubectl's --output-watch-events.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	// eventTitle is the title of their column, as wide as the widest of them.
	eventTitle = "EVENT   "
)

// keyChange is a key that changed between two lists.
type keyChange struct {
	kind string
	key  *api.Key
}

// watchImages prints the keys and then their changes, until the user interrupts it.
func (a *app) watchImages(ctx context.Context, cmd *cli.Command) error {
	return endOfWatch(a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		return a.followImages(ctx, cmd, c)
	}))
}

func (a *app) followImages(ctx context.Context, cmd *cli.Command, c api.ControlClient) error {
	show := a.changePrinter(cmd)
	var keys []*api.Key
	return every(ctx, a.interval, func() error {
		response, err := listImages(c, ctx, imagesRequest(cmd))
		if err != nil {
			return err
		}
		now := response.GetKeys()
		if printsText(cmd) {
			now = listedKeys(cmd, now)
		}
		changes := keyChanges(keys, now)
		keys = now
		return show(changes)
	})
}

// every calls do at once, and then at an interval, until it fails or ctx ends.
func every(ctx context.Context, interval time.Duration, do func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := do(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// endOfWatch returns the error of a watch. A signal is its usual end and needs no message.
func endOfWatch(err error) error {
	var signaled signalError
	if errors.As(err, &signaled) {
		return exitError(signaled.exitCode())
	}
	return err
}

type keyID struct{ ref, platform, snapshotter string }

func idOf(k *api.Key) keyID {
	return keyID{k.GetRef(), k.GetTarget().GetPlatform(), k.GetTarget().GetSnapshotter()}
}

func byID(keys []*api.Key) map[keyID]*api.Key {
	all := make(map[keyID]*api.Key, len(keys))
	for _, k := range keys {
		all[idOf(k)] = k
	}
	return all
}

// keyChanges returns the changes from one list to the next: new and modified keys in the order of the list, and then
// the deleted ones.
func keyChanges(before, after []*api.Key) []keyChange {
	var changes []keyChange
	old, current := byID(before), byID(after)
	for _, k := range after {
		switch was, ok := old[idOf(k)]; {
		case !ok:
			changes = append(changes, keyChange{added, k})
		case !proto.Equal(was, k):
			changes = append(changes, keyChange{modified, k})
		}
	}
	for _, k := range before {
		if current[idOf(k)] == nil {
			changes = append(changes, keyChange{deleted, k})
		}
	}
	return changes
}

// changePrinter returns the function that prints changes in the format of --output.
func (a *app) changePrinter(cmd *cli.Command) func([]keyChange) error {
	if !printsText(cmd) {
		return func(changes []keyChange) error {
			for _, c := range changes {
				if err := printChange(a.Out, cmd.String("output"), c); err != nil {
					return err
				}
			}
			return nil
		}
	}
	t := &imageTable{w: a.Out, header: a.header(append([]string{eventTitle}, titles(imageColumns(cmd, a.style(cmd)))...))}
	return func(changes []keyChange) error {
		columns := imageColumns(cmd, a.style(cmd))
		return t.print(mapped(changes, func(c keyChange) []string { return append([]string{c.kind}, cells(columns, c.key)...) }))
	}
}

// printChange prints a change as one object with type and object, as kubectl does.
func printChange(w io.Writer, format string, c keyChange) error {
	key, err := marshal(c.key)
	if err != nil {
		return err
	}
	object, err := json.Marshal(struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{c.kind, key})
	if err != nil {
		return err
	}
	return printItem(w, format, object)
}

// printItem prints an object of a stream.
func printItem(w io.Writer, format string, object []byte) error {
	if format == outputYAML {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
	}
	return printObject(w, format, object)
}
