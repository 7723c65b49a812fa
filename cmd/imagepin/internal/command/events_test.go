package command

import (
	"bytes"
	"context"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// allEvents has an event of each topic.
func allEvents() []*api.Event {
	overlayfs := appKey().Target
	all := []*api.Event{
		{Topic: "/content/create", Digest: layerD, Size: 5 << 20},
		{Topic: "/snapshot/prepare", Snapshot: "extract-1 " + chainID, Parent: digestOld, Snapshotter: "overlayfs"},
		{Topic: "/snapshot/commit", Snapshot: chainID, Snapshotter: "overlayfs"},
		{Topic: "/images/create", Ref: appRef, Digest: digestOld},
		{Topic: "/images/create", Ref: "registry.example.com/shop/app@" + digestOld, Digest: digestOld, Targets: []*api.Target{armKey().Target, overlayfs}},
		{Topic: "/images/update", Ref: imageID, Digest: imageID},
		{Topic: "/images/delete", Ref: appRef},
		{Topic: "/imagepin/pin/made", Ref: appRef, Digest: digestOld, Scope: "node"},
		{Topic: "/imagepin/pin/moved", Ref: appRef, Digest: digestNew, Scope: workload, Previous: digestOld, Drift: digestNew},
		{Topic: "/imagepin/pin/drifted", Ref: appRef, Digest: digestOld, Scope: "node", Drift: digestNew},
		{Topic: "/imagepin/lock/applied", Digest: digestNew, Previous: digestOld},
		{Topic: "/imagepin/lock/applied"},
		{Topic: "/snapshot/remove", Snapshot: "container", Snapshotter: "native"},
		{Topic: "/content/delete", Digest: layerD, Lost: 2},
		{Topic: "/content/newer", Digest: layerD},
	}
	for _, e := range all {
		e.At = ago(0)
	}
	return all
}

// TestEvents prints events until a signal ends the command.
func TestEvents(t *testing.T) {
	for format, args := range map[string][]string{
		outputTable: nil, "no-trunc": {"--no-trunc"}, outputJSON: {"-o", outputJSON}, outputYAML: {"-o", outputYAML},
		"template": {"-o", "go-template={{println .topic .digest}}"},
	} {
		c := recorded()
		c.events = allEvents()
		ctx, cancel := context.WithCancelCause(t.Context())
		var out, errOut bytes.Buffer
		c.during = func(ctx context.Context) {
			cancel(signalError{os.Interrupt})
			<-ctx.Done()
		}
		received := make(chan struct{})
		_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, &afterEvents{c, received}) })
		a := &app{Stdio: Stdio{Out: &countedWriter{&out, len(c.events), received}, Err: &errOut}, now: testNow.Local}
		args = append([]string{"imagepin", "-a", address, "events", "--ref", "a/*:*"}, args...)
		if code := a.run(ctx, args); code != exitInterrupted || errOut.String() != "imagepin: warning: 2 events lost, because they were not read in time\n" {
			t.Errorf("%s: exit code %d, want %d; printed %q", format, code, exitInterrupted, &errOut)
		}
		golden(t, "events."+format, out.String())
		if want := (&api.EventsRequest{RefGlob: "a/*:*"}); !proto.Equal(c.request, want) {
			t.Errorf("got request %v, want %v", c.request, want)
		}
	}
}

// afterEvents ends the call of [control.Events] only after the command has printed its events.
type afterEvents struct {
	*control
	printed chan struct{}
}

func (c *afterEvents) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	for _, e := range c.events {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	<-c.printed
	return c.answer(stream.Context(), r)
}

// countedWriter closes a channel after a number of events.
type countedWriter struct {
	*bytes.Buffer
	left int
	done chan struct{}
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if bytes.Equal(p, []byte("---\n")) {
		return n, err // the object follows
	}
	if w.left--; w.left == 0 {
		close(w.done)
	}
	return n, err
}
