// Package testkit has the rig of the integration tests, and functions that start nodes and registries for a test, stop them
// at its end, and turn errors into failures. The packages node, registry and images do the same without a testing.TB.
package testkit

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.uber.org/goleak"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/port"
	"github.com/imagepin/imagepin/integration/registry"
)

// PauseRef is the reference of the sandbox image that [PushPause] pushes.
const PauseRef = "pause:3.10"

// Main runs the tests of a package and fails if goroutines are left after them. Use it as TestMain.
func Main(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// Context returns a context that ends with the test, or 20 seconds before the deadline of the test binary, so that the test
// can report its failure and clean up.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx := t.Context()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := d.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadlineCause(ctx, at.Add(-20*time.Second), fmt.Errorf("%s: out of time", t.Name()))
			t.Cleanup(cancel)
		}
	}
	return ctx
}

// Node starts a containerd for the test. If the test fails, the end of containerd's log is printed. If IMAGEPIN_KEEP_LOGS
// names a directory, the whole log is kept there.
func Node(t testing.TB, opts node.Options) *node.Node {
	t.Helper()
	n := NewNode(t, opts)
	if err := n.Start(Context(t)); err != nil {
		t.Fatalf("starting the node: %v", err)
	}
	return n
}

// NewNode is [Node] without the start.
func NewNode(t testing.TB, opts node.Options) *node.Node {
	t.Helper()
	n, err := node.New(opts)
	if err != nil {
		t.Fatalf("creating a node: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			report(t, n)
		}
		if err := n.Close(); err != nil {
			t.Errorf("cleaning up the node: %v", err)
		}
	})
	return n
}

func report(t testing.TB, n *node.Node) {
	lines := strings.Split(n.Logs(), "\n")
	t.Logf("the end of containerd's log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
	if dir := os.Getenv("IMAGEPIN_KEEP_LOGS"); dir != "" {
		path := dir + "/" + strings.ReplaceAll(t.Name(), "/", "_") + ".log"
		if err := os.WriteFile(path, []byte(n.Logs()), 0o644); err != nil {
			t.Logf("keeping the log: %v", err)
		}
	}
}

// Registry starts a registry for the test.
func Registry(t testing.TB) *registry.Registry {
	t.Helper()
	r, err := registry.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// Push pushes an image or index to the registry under "repo:tag" and returns its digest.
func Push(t testing.TB, r *registry.Registry, ref string, content remote.Taggable) v1.Hash {
	t.Helper()
	h, err := r.Push(ref, content)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// PushPause pushes the sandbox image to the registry and returns its full reference.
func PushPause(t testing.TB, r *registry.Registry) string {
	t.Helper()
	idx, err := images.PauseIndex(Context(t))
	if err != nil {
		t.Fatal(err)
	}
	Push(t, r, PauseRef, idx)
	return r.Ref(PauseRef)
}

// App builds an image, see [images.App].
func App(t testing.TB, opts images.Options) v1.Image {
	t.Helper()
	img, err := images.App(Context(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// AppIndex builds an index, see [images.AppIndex].
func AppIndex(t testing.TB, opts images.Options, platforms ...string) v1.ImageIndex {
	t.Helper()
	idx, err := images.AppIndex(Context(t), opts, platforms...)
	if err != nil {
		t.Fatal(err)
	}
	return idx
}

// State returns the state of a node.
func State(t testing.TB, n *node.Node) *node.State {
	t.Helper()
	s, err := n.State(Context(t))
	if err != nil {
		t.Fatalf("reading the node's state: %v", err)
	}
	return s
}

// NoLeaks collects garbage and fails the test unless the node has the same state as before.
func NoLeaks(t testing.TB, n *node.Node, before *node.State) {
	t.Helper()
	if err := n.GC(Context(t)); err != nil {
		t.Fatalf("collecting garbage: %v", err)
	}
	if d := node.Diff(before, State(t, n)); d != "" {
		t.Errorf("the node's state differs from before (+ is leaked, - is lost):\n%s", d)
	}
}

// Address returns an address of the loopback interface with a port that no other process gets until the end of the test.
func Address(t testing.TB) string {
	t.Helper()
	p, err := port.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Addr()
}

// Eventually waits until a condition holds. It checks the condition every few milliseconds for at most ten seconds. An error
// ends the wait. what describes the condition in a failure.
func Eventually(t testing.TB, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	EventuallyIn(t, 10*time.Second, what, condition)
}

// EventuallyIn is [Eventually] with another time limit. Between two tries it waits for 5 ms, or for four times as long as
// the last one took: a condition that runs a command would otherwise keep a processor busy.
func EventuallyIn(t testing.TB, bound time.Duration, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(Context(t), bound)
	defer cancel()
	for {
		start := time.Now()
		ok, err := condition(ctx)
		if err != nil && ctx.Err() == nil {
			t.Fatalf("waiting until %s: %v", what, err)
		}
		if ok {
			return
		}
		select {
		case <-time.After(max(5*time.Millisecond, 4*time.Since(start))):
		case <-ctx.Done():
			t.Fatalf("did not happen: %s", what)
		}
	}
}
