package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const eventsDescription = `Prints one line for each event of images, content, snapshots and pins, until it is
interrupted: the time, what happened, the reference or the name, the digest, and
the platforms and snapshotters. Events of images are those of containerd's image
records, whose names can also be image IDs.

With --ref, it prints only events of images and pins whose reference matches.
With -o json, each event is one JSON object on a line.

Examples:
  imagepin events
  imagepin events --ref 'docker.io/library/*:*'
  imagepin events -o json | jq -r 'select(.topic == "/imagepin/pin/drifted") | .ref'`

func (a *app) eventsCommand() *cli.Command {
	return &cli.Command{
		Name:        "events",
		Usage:       "Print what happens to images, content, snapshots and pins",
		Description: eventsDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ref", Usage: "only events of references that match `GLOB` as a whole: * matches any text without a slash, ** any text"},
			noTruncFlag(),
		},
		Action: noArguments(a.events),
	}
}

func (a *app) events(ctx context.Context, cmd *cli.Command) error {
	return endOfWatch(a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream if printing failed
		stream, err := c.Events(ctx, &api.EventsRequest{RefGlob: cmd.String("ref")})
		for err == nil {
			var e *api.Event
			if e, err = stream.Recv(); err == nil {
				err = a.printEvent(cmd, e)
			}
		}
		if errors.Is(err, io.EOF) {
			return errors.New("containerd ended the stream of events")
		}
		return err
	}))
}

func (a *app) printEvent(cmd *cli.Command, e *api.Event) error {
	if n := e.GetLost(); n > 0 {
		fmt.Fprintf(a.Err, "imagepin: warning: %s lost, because they were not read in time\n", count(n, "event"))
	}
	format := cmd.String("output")
	if printsText(cmd) {
		_, err := fmt.Fprintln(a.Out, printable(eventLine(a.style(cmd), e)))
		return err
	}
	object, err := marshal(e)
	if err != nil {
		return err
	}
	if format == outputJSON {
		return printJSONLine(a.Out, object)
	}
	return printItem(a.Out, format, object)
}

// printJSONLine prints object on one line.
func printJSONLine(w io.Writer, object []byte) error {
	var out bytes.Buffer
	if err := json.Compact(&out, object); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err := out.WriteTo(w)
	return err
}

// eventNames are the events as text, by topic.
var eventNames = map[string]string{
	"/images/create": "image created", "/images/update": "image updated", "/images/delete": "image deleted",
	"/content/create": "content created", "/content/delete": "content deleted",
	"/snapshot/prepare": "snapshot prepared", "/snapshot/commit": "snapshot committed", "/snapshot/remove": "snapshot removed",
	lockTopic: "lock applied",
}

// lockTopic is the topic of the event that the lock of the node has changed. Its digest is empty if the lock was removed.
const lockTopic = "/imagepin/lock/applied"

// pinTopic is the prefix of the topics of pins. What happened follows.
const pinTopic = "/imagepin/pin/"

// eventLine returns an event as one line.
func eventLine(s style, e *api.Event) string {
	name := eventNames[e.GetTopic()]
	if what, ok := strings.CutPrefix(e.GetTopic(), pinTopic); ok {
		name = "pin " + what
	} else if name == "" {
		name = e.GetTopic()
	} else if e.GetTopic() == lockTopic && e.GetDigest() == "" {
		name = "lock removed"
	}
	words := []string{stamp(e.GetAt()), fmt.Sprintf("%-18s", name)}
	if e.GetRef() != "" {
		words = append(words, s.name(e.GetRef()))
	}
	if e.GetSnapshot() != "" {
		words = append(words, s.name(e.GetSnapshot()))
	}
	if e.GetDigest() != "" && e.GetDigest() != e.GetRef() {
		words = append(words, s.digest(e.GetDigest()))
	}
	if detail := eventDetail(s, e); detail != "" {
		words = append(words, detail)
	}
	return strings.TrimRight(strings.Join(words, "  "), " ")
}

// name truncates the digests in the name of an image record or a snapshot.
func (s style) name(name string) string {
	if s.noTrunc {
		return name
	}
	words := strings.Split(name, " ")
	for i, w := range words {
		words[i] = s.ref(short(w))
	}
	return strings.Join(words, " ")
}

func eventDetail(s style, e *api.Event) string {
	var all []string
	if e.GetSize() > 0 {
		all = append(all, size(e.GetSize()))
	}
	for _, t := range e.GetTargets() {
		all = append(all, targetName(t))
	}
	if e.GetSnapshotter() != "" {
		all = append(all, "on "+e.GetSnapshotter())
	}
	if e.GetParent() != "" {
		all = append(all, "parent "+s.name(e.GetParent()))
	}
	if e.GetScope() != "" {
		all = append(all, "scope "+e.GetScope())
	}
	if e.GetPrevious() != "" {
		all = append(all, "was "+s.digest(e.GetPrevious()))
	}
	if e.GetDrift() != "" && e.GetTopic() == pinTopic+"drifted" {
		all = append(all, "tag moved to "+s.digest(e.GetDrift()))
	}
	return strings.Join(all, ", ")
}
