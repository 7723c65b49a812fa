package observe

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestEvents checks that the events of a pull, of a tag that moves and of a removal arrive, and those of other references
// do not if there is a filter.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules})
	ref, other := r.Reg.Ref("node/app:v1"), r.Reg.Ref("node/other:v1")
	all := receive(r, &api.EventsRequest{})
	some := receive(r, &api.EventsRequest{RefGlob: strings.TrimSuffix(ref, "v1") + "*"})

	r.Version("node/other:v1", "other")
	r.MustPull(other, "")
	old := r.Version("node/app:v1", "old")
	r.MustPull(ref, "")
	all.want("/imagepin/pin/made", func(e *api.Event) bool { return e.Ref == other })
	all.want("/imagepin/pin/made", func(e *api.Event) bool { return e.Ref == ref && e.Digest == old && e.Scope == "node" })
	all.want("/content/create", func(e *api.Event) bool { return e.Digest == old && e.Size > 0 })
	all.want("/snapshot/commit", func(e *api.Event) bool { return e.Snapshotter == "overlayfs" && e.Snapshot != "" })
	all.want("/images/create", func(e *api.Event) bool { return e.Ref == ref && e.Digest == old })
	all.want("/images/create", func(e *api.Event) bool {
		return strings.HasSuffix(e.Ref, "app@"+old) && e.Digest == old && len(e.Targets) == 1 && e.Targets[0].Snapshotter == "overlayfs"
	})

	moved := r.Version("node/app:v1", "new")
	r.MustPull(ref, "")
	all.want("/imagepin/pin/drifted", func(e *api.Event) bool { return e.Ref == ref && e.Digest == old && e.Drift == moved })
	r.MustRemove(ref, "")
	all.want("/images/delete", func(e *api.Event) bool { return e.Ref == ref })
	all.want("/snapshot/remove", func(e *api.Event) bool { return e.Snapshotter == "overlayfs" })

	some.want("/images/delete", func(e *api.Event) bool { return e.Ref == ref })
	for _, e := range some.seen {
		if e.Ref != ref {
			t.Errorf("with a filter: got %v", e)
		}
	}
}

// TestEventsUntilTheEnd checks that a call for events does not keep imagepin from stopping, nor from being uninstalled.
func TestEventsUntilTheEnd(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	received := receive(r, &api.EventsRequest{})
	if _, err := r.Control().Uninstall(r.Ctx, &api.UninstallRequest{}); err != nil {
		t.Error(err)
	}
	since := time.Now()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	for range received.next {
	}
	if took := time.Since(since); took > 8*time.Second {
		t.Errorf("the stop took %s", took)
	}
}

// TestCommandEvents interrupts the command after it has printed the events of a pull.
func TestCommandEvents(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	for _, format := range []string{"table", "json"} {
		ref := r.Reg.Ref("shop/" + format + ":v1")
		d := r.Version("shop/"+format+":v1", format)
		cmd := exec.CommandContext(r.Ctx, filepath.Join(r.Options().BinDir, "imagepin"), "--address", r.Address(), "events", "-o", format, "--ref", ref)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer cmd.Process.Signal(syscall.SIGINT)
			lines := bufio.NewScanner(out)
			line := ""
			// It may subscribe after the pull, and see only the removal. The event of a record that is already removed has no digest.
			for line == "" || !strings.Contains(line, d[len("sha256:"):][:12]) {
				if !lines.Scan() {
					t.Errorf("%s: no line: %v", format, lines.Err())
					return
				}
				line = lines.Text()
			}
			if format == "json" {
				var e struct{ Topic, Ref, Digest string }
				if err := json.Unmarshal([]byte(line), &e); err != nil || e.Ref != ref || e.Digest != d || !strings.HasPrefix(e.Topic, "/images/") {
					t.Errorf("got %s: %v", line, err)
				}
			} else if !strings.Contains(line, "Z  image ") || !strings.HasSuffix(line, "  "+ref+"  "+d[len("sha256:"):][:12]) {
				t.Errorf("got %q", line)
			}
		}()
		// The command subscribes some time after its start: each pull publishes an event.
		for done := false; !done; {
			r.MustPull(ref, "")
			select {
			case <-ended:
				done = true
			default:
				r.MustRemove(ref, "")
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("%s: got %v, want exit code 130", format, err)
		}
	}
}

// received are the events of a call.
type received struct {
	*testkit.Rig
	next chan *api.Event
	seen []*api.Event
}

// receive begins to receive events.
func receive(r *testkit.Rig, request *api.EventsRequest) *received {
	r.T.Helper()
	stream, err := r.Control().Events(r.Ctx, request)
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		r.T.Fatal(err)
	}
	e := &received{Rig: r, next: make(chan *api.Event, 1000)}
	go func() {
		defer close(e.next)
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			e.next <- event
		}
	}()
	return e
}

// want waits for an event, unless it has arrived before, and fails the test if it does not arrive.
func (e *received) want(topic string, is func(*api.Event) bool) {
	e.T.Helper()
	if slices.ContainsFunc(e.seen, func(event *api.Event) bool { return event.Topic == topic && is(event) }) {
		return
	}
	timeout := time.After(20 * time.Second)
	for {
		select {
		case event, ok := <-e.next:
			if !ok {
				e.T.Fatalf("the stream has ended without %s", topic)
			}
			e.seen = append(e.seen, event)
			if event.Topic == topic && is(event) {
				return
			}
		case <-timeout:
			e.T.Fatalf("no event %s in %v", topic, e.seen)
		}
	}
}
