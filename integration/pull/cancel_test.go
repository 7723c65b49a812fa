package pull

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCancelledPullStops cancels a pull in each phase. Its work ends, nothing is left, and the next pull succeeds.
func TestCancelledPullStops(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	never := make(chan struct{})
	defer close(never)
	large := func(q registry.Request) bool { return q.Kind == registry.Blob && q.Method == "GET" }
	for _, test := range []struct {
		name  string
		fault registry.Fault
		when  func(registry.Request) bool
	}{
		{"resolving", registry.Fault{Hang: never}, registry.Is("HEAD", "")},
		{"manifest", registry.Fault{Hang: never}, registry.Is("GET", registry.Manifest)},
		{"blobs", registry.Fault{Hang: never}, large},
		{"middle-of-blobs", registry.Fault{Hang: never, After: 60}, large},
		{"middle-of-layer", registry.Fault{Hang: never, After: 100_000}, large},
	} {
		for _, handler := range []string{"", "native"} {
			t.Run(strings.TrimSpace(test.name+" "+handler), func(t *testing.T) {
				repo := test.name + ":v1"
				testkit.Push(t, reg, repo, testkit.App(t, images.Options{Version: test.name}))
				reg.SetFault(registry.FaultIf(test.fault, test.when))
				before := testkit.State(t, n)
				ctx, cancel := context.WithCancel(testkit.Context(t))
				defer cancel()
				failed := make(chan error, 1)
				go func() {
					_, err := n.Pull(ctx, reg.Ref(repo), handler)
					failed <- err
				}()
				testkit.AwaitRequest(t, reg, test.when, func(q registry.Request) bool { return !q.Done })
				cancel()
				if err := <-failed; status.Code(err) != codes.Canceled {
					t.Errorf("cancelled pull: got error %v, want Canceled", err)
				}
				testkit.AwaitIdle(t, reg)
				testkit.Eventually(t, "nothing of the cancelled pull is left", func(context.Context) (bool, error) {
					return node.Diff(before, testkit.State(t, n)) == "", nil
				})
				reg.SetFault(nil)
				checkNextPull(t, n, reg.Ref(repo), handler)
				reg.Reset()
			})
		}
	}
}

// TestLastCallerStopsThePull checks that a pull with three callers continues until the last caller cancels.
func TestLastCallerStopsThePull(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{})
	hangs := map[string]func(registry.Request) bool{
		"resolving": registry.Is("HEAD", ""),
		"fetching":  registry.Is("GET", registry.Blob),
	}
	for phase, when := range hangs {
		for _, stays := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s stays=%t", phase, stays), func(t *testing.T) {
				repo := fmt.Sprintf("%s-%t:v1", phase, stays)
				testkit.Push(t, reg, repo, testkit.App(t, images.Options{Version: repo}))
				release := make(chan struct{})
				reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, when))
				before := testkit.State(t, n)
				var cancels [3]context.CancelFunc
				var failed [3]chan error
				for i := range cancels {
					ctx, cancel := context.WithCancel(testkit.Context(t))
					defer cancel()
					cancels[i], failed[i] = cancel, make(chan error, 1)
					go func() {
						_, err := n.Pull(ctx, reg.Ref(repo), "")
						failed[i] <- err
					}()
				}
				testkit.AwaitGoroutines(t, n, len(cancels), "pull.(*Puller).Pull+")
				testkit.AwaitRequest(t, reg, when)
				for i := range 2 {
					cancels[i]()
					if err := <-failed[i]; status.Code(err) != codes.Canceled {
						t.Errorf("cancelled caller: got error %v, want Canceled", err)
					}
				}
				if stays {
					close(release)
					if err := <-failed[2]; err != nil {
						t.Errorf("remaining caller: %v", err)
					}
					if reg.Count(registry.Is("HEAD", "")) != 1 {
						t.Errorf("want 1 HEAD request:\n%s", reg.Dump())
					}
					checkOnce(t, reg)
				} else {
					cancels[2]()
					if err := <-failed[2]; status.Code(err) != codes.Canceled {
						t.Errorf("last caller: got error %v, want Canceled", err)
					}
					testkit.AwaitIdle(t, reg)
					testkit.Eventually(t, "nothing of the cancelled pull is left", func(context.Context) (bool, error) {
						return node.Diff(before, testkit.State(t, n)) == "", nil
					})
					close(release)
				}
				reg.SetFault(nil)
				reg.Reset()
			})
		}
	}
}

// TestMakingReadyOutlivesItsCallers cancels two calls that make an image ready, as kubelet does after some minutes. The
// work continues, and the third call gets its result.
func TestMakingReadyOutlivesItsCallers(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"CreateContainer", "RunPodSandbox"} {
		t.Run(call, func(t *testing.T) {
			ctx := testkit.Context(t)
			reg := testkit.Registry(t)
			n := testkit.Node(t, node.Options{
				SandboxImage: testkit.PushPause(t, reg), DiscardUnpackedLayers: true,
				Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}},
			})
			opts := images.Options{Random: []images.Random{{Size: 4 << 20, Seed: 1}, {Size: 4 << 20, Seed: 2}}}
			testkit.Push(t, reg, "app:v1", testkit.App(t, opts))

			var attempt func(context.Context) error
			switch call {
			case "CreateContainer":
				if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
					t.Fatal(err)
				}
				pod, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
				if err != nil {
					t.Fatal(err)
				}
				// Discarded layers stay until the garbage collection.
				if err := n.GC(ctx); err != nil {
					t.Fatal(err)
				}
				attempt = func(ctx context.Context) error {
					_, line, err := n.RunContainer(ctx, pod, node.ContainerOptions{Image: reg.Ref("app:v1")})
					if err == nil && line != opts.Line(0) {
						err = fmt.Errorf("container: got %q, want %q", line, opts.Line(0))
					}
					return err
				}
			case "RunPodSandbox":
				attempt = func(ctx context.Context) error {
					_, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
					return err
				}
			}
			reg.Reset()
			release := make(chan struct{})
			blob := registry.Is("GET", registry.Blob)
			hangs := reg.Later()
			reg.SetFault(registry.FaultIf(registry.Fault{Hang: release, After: 100}, blob))

			first, cancel := context.WithCancel(ctx)
			failed := make(chan error, 1)
			go func() { failed <- attempt(first) }()
			testkit.AwaitRequest(t, reg, blob, hangs)
			cancel()
			if err := testkit.RootCause(<-failed); status.Code(err) != codes.Canceled {
				t.Errorf("cancelled caller: got error %v, want Canceled", err)
			}
			second, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			if err := testkit.RootCause(attempt(second)); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("caller with a deadline: got error %v, want DeadlineExceeded", err)
			}
			if reg.Count(blob, func(q registry.Request) bool { return !q.Done }) == 0 {
				t.Errorf("the work ended with its callers:\n%s", reg.Dump())
			}
			close(release)
			if err := attempt(ctx); err != nil {
				t.Errorf("third attempt: %v", err)
			}
			checkOnce(t, reg)
			if reg.Count(func(q registry.Request) bool { return q.Range != "" }) != 0 {
				t.Error("a blob was fetched in ranges")
			}
			if t.Failed() {
				t.Log(reg.Dump())
			}
		})
	}
}

// TestMakingReadyEndsWhenStalled checks that stalled work without callers ends.
func TestMakingReadyEndsWhenStalled(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		SandboxImage: testkit.PushPause(t, reg), DiscardUnpackedLayers: true, Extra: shortTimeout,
		Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}},
	})
	testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{}))
	never := make(chan struct{})
	defer close(never)
	blob := registry.Is("GET", registry.Blob)
	hang := registry.FaultIf(registry.Fault{Hang: never, After: 60}, blob)

	reg.SetFault(hang)
	before := testkit.State(t, n)
	_, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
	testkit.Stalled.Check(t, testkit.RootCause(err), reg.Ref(testkit.PauseRef), testkit.TargetOf("native"))
	testkit.AwaitIdle(t, reg)
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("the stalled pull of the sandbox image left:\n%s", d)
	}
	reg.SetFault(nil)
	pod, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(ctx); err != nil {
		t.Fatal(err)
	}
	hangs := reg.Later()
	reg.SetFault(hang)
	before = testkit.State(t, n)
	callCtx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := n.CreateContainer(callCtx, pod, node.ContainerOptions{Image: reg.Ref("app:v1")})
		failed <- err
	}()
	testkit.AwaitRequest(t, reg, blob, hangs)
	cancel()
	<-failed
	testkit.AwaitIdle(t, reg) // the work ends without callers
	testkit.Eventually(t, "nothing of the stalled work is left", func(context.Context) (bool, error) {
		return node.Diff(before, testkit.State(t, n)) == "", nil
	})
	_, err = n.CreateContainer(ctx, pod, node.ContainerOptions{Image: reg.Ref("app:v1")})
	testkit.Stalled.Check(t, testkit.RootCause(err), reg.Ref("app:v1"), testkit.TargetOf("native"))
	reg.SetFault(nil)
	if _, err := n.CreateContainer(ctx, pod, node.ContainerOptions{Image: reg.Ref("app:v1")}); err != nil {
		t.Errorf("next attempt: %v", err)
	}
}

// TestPrivateLayersThatWereDiscarded creates a container in a second snapshotter, for a private image whose layers are
// discarded. The credential of the earlier pull is not used, and the error names the settings that help.
func TestPrivateLayersThatWereDiscarded(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	public, reg := testkit.Registry(t), testkit.Registry(t)
	reg.SetAuth(testkit.OnlyAlice(false))
	n := testkit.Node(t, node.Options{
		SandboxImage: testkit.PushPause(t, public), DiscardUnpackedLayers: true,
		Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}},
	})
	opts := images.Options{}
	testkit.Push(t, reg, "app:v1", testkit.App(t, opts))
	ref := reg.Ref("app:v1")
	if _, err := n.PullWith(ctx, ref, node.PullOptions{Auth: testkit.AsAlice()}); err != nil {
		t.Fatal(err)
	}
	pod, err := n.RunPod(ctx, node.PodOptions{Handler: "native"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.GC(ctx); err != nil {
		t.Fatal(err)
	}
	reg.Reset()
	before := testkit.State(t, n)
	_, err = n.CreateContainer(ctx, pod, node.ContainerOptions{Image: ref})
	testkit.Failure{Name: "ImageNotReady", Code: codes.Unauthenticated}.Check(t, testkit.RootCause(err), ref, testkit.TargetOf("native"))
	for _, helps := range []string{"discard_unpacked_layers", "credential", "RuntimeClassInImageCriApi"} {
		if err != nil && !strings.Contains(err.Error(), helps) {
			t.Errorf("the error does not contain %s: %v", helps, err)
		}
	}
	if reg.Count(func(q registry.Request) bool { return q.Authorized }) != 0 {
		t.Errorf("a credential was used for another pod:\n%s", reg.Dump())
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("the failed CreateContainer left:\n%s", d)
	}
	// After a pull for the handler with the credential, it runs.
	if _, err := n.PullWith(ctx, ref, node.PullOptions{Auth: testkit.AsAlice(), Handler: "native"}); err != nil {
		t.Fatal(err)
	}
	_, line, err := n.RunContainer(ctx, pod, node.ContainerOptions{Image: ref})
	if err != nil || line != opts.Line(0) {
		t.Errorf("container: got %q, %v", line, err)
	}
}
