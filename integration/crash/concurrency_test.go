package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

const (
	concurrentWorkers = 8
	concurrentCalls   = 40 // of each worker
	callsPerRestart   = 45 // of all workers
	// callTimeout allows for the race detector. A call that takes longer hangs.
	callTimeout = 2 * time.Minute
	// retryDelay is the time before a call that got no answer is repeated.
	retryDelay = 50 * time.Millisecond
)

// TestConcurrency makes concurrent calls for a few images through the CRI, the imagepin command and ctr, while
// containerd is repeatedly stopped or killed, and restarted. Every call returns. Afterwards the node is consistent and
// all images can be removed.
//
// IMAGEPIN_CONCURRENCY_BINARY names another containerd binary. make test-race sets one with the race detector, which
// must find no race.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("IMAGEPIN_CRASH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("IMAGEPIN_CRASH_SEED: %v", err)
		}
	}
	t.Logf("IMAGEPIN_CRASH_SEED=%d", seed)
	c := newKillRig(t, "native", node.Options{
		NoPods: true, Binary: os.Getenv("IMAGEPIN_CONCURRENCY_BINARY"), StartTimeout: 2 * time.Minute,
	})
	c.check.OtherTools = true
	for _, repo := range crashRepos {
		c.pushData(repo+":1", "0")
	}
	images := cri.NewImageServiceClient(reconnecting(t, c.Node))
	returned := make(chan struct{}, concurrentWorkers*concurrentCalls)
	var running sync.WaitGroup
	for w := range concurrentWorkers {
		running.Go(func() {
			worker := concurrentWorker{killRig: c, Rand: rand.New(rand.NewPCG(seed, uint64(w))), images: images}
			for range concurrentCalls {
				worker.call()
				returned <- struct{}{}
			}
		})
	}
	go func() { running.Wait(); close(returned) }()
	restarts, err := c.restartBetween(returned)
	running.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if want := concurrentWorkers * concurrentCalls / callsPerRestart; restarts != want {
		t.Errorf("got %d restarts of containerd, want %d", restarts, want)
	}
	c.dropForeignLeases()
	c.wantConsistent("after all calls")
	c.removeAll("after all calls")
	if logs := c.Logs(); strings.Contains(logs, "DATA RACE") {
		_, race, _ := strings.Cut(logs, "WARNING: DATA RACE")
		t.Errorf("the race detector found a data race:\n%s", race[:min(len(race), 5000)])
	}
}

// reconnecting returns a connection to a node that survives restarts, unlike the node's own.
func reconnecting(t *testing.T, n *node.Node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryDelay, Multiplier: 1, MaxDelay: retryDelay},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// restartBetween restarts containerd each time that callsPerRestart more calls have returned, until the channel is
// closed. It stops and kills containerd in turn.
func (c *killRig) restartBetween(returned <-chan struct{}) (restarts int, _ error) {
	calls := 0
	for range returned {
		if calls++; calls%callsPerRestart > 0 {
			continue
		}
		end := c.Stop
		if restarts++; restarts%2 == 0 {
			end = c.Kill9
		}
		if err := end(); err != nil {
			return restarts, fmt.Errorf("end containerd: %w", err)
		}
		if err := c.Start(c.Ctx); err != nil {
			return restarts, fmt.Errorf("start containerd: %w", err)
		}
	}
	return restarts, nil
}

type concurrentWorker struct {
	*killRig
	*rand.Rand
	images cri.ImageServiceClient
}

// call makes one random call, and fails the test if the call does not return in time. The call may fail, because other
// workers remove what it needs. If containerd does not answer, it is repeated.
func (w *concurrentWorker) call() {
	ctx, cancel := context.WithTimeout(w.Ctx, callTimeout)
	defer cancel()
	what, do := w.choose()
	for {
		err := do(ctx)
		if ctx.Err() != nil {
			w.T.Errorf("%s did not return in %s: %v", what, callTimeout, err)
			return
		}
		if !unanswered(err) {
			return
		}
		select {
		case <-time.After(retryDelay):
		case <-ctx.Done():
		}
	}
}

// unanswered reports whether a call failed because containerd did not run or ended. For commands it checks the text.
func unanswered(err error) bool {
	if err == nil {
		return false
	}
	if s, ok := status.FromError(err); ok {
		return s.Code() == codes.Unavailable
	}
	for _, text := range []string{"Unavailable", "connection refused", "connection reset", "no such file or directory", "EOF", "failed to dial"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// choose returns a random call and its description.
func (w *concurrentWorker) choose() (what string, do func(context.Context) error) {
	repo := crashRepos[w.IntN(len(crashRepos))]
	ref := w.Reg.Ref(repo + ":1")
	handler := allHandlers[w.IntN(len(allHandlers))]
	image := &cri.ImageSpec{Image: ref, RuntimeHandler: handler}
	pull := func(ctx context.Context) error {
		_, err := w.images.PullImage(ctx, &cri.PullImageRequest{Image: image})
		return err
	}
	command := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := w.commandIn(ctx, args...); return err }
	}
	ctr := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := w.Ctr(ctx, args...); return err }
	}
	switch n := w.IntN(20); {
	case n < 7:
		return "a pull of " + ref + " for " + handler, pull
	case n < 8:
		timeout := time.Duration(w.IntN(50)) * time.Millisecond
		return "a pull that is cancelled", func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			_ = pull(short)
			return nil
		}
	case n < 11:
		removed := &cri.ImageSpec{Image: ref, RuntimeHandler: []string{"", handler}[w.IntN(2)]}
		return "a removal of " + ref, func(ctx context.Context) error {
			_, err := w.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: removed})
			return err
		}
	case n < 12:
		return "a refresh of " + ref, command("refresh", ref)
	case n < 13:
		return "pin rm " + ref, command("pin", "rm", ref)
	case n < 14:
		return "a check", command("check")
	case n < 15:
		return "ctr's pull of " + ref, ctr("images", "pull", "--local", "--plain-http", ref)
	case n < 16:
		return "ctr's removal of " + ref, ctr("images", "rm", ref)
	case n < 17:
		return "ctr's tag of " + ref, ctr("images", "tag", "--force", ref, w.Reg.Ref("mine:"+strconv.Itoa(w.IntN(3))))
	case n < 18:
		version := strconv.Itoa(w.IntN(3))
		return "a push of " + ref, func(context.Context) error {
			_, err := w.Reg.Push(repo+":1", w.dataIndex(version))
			return err
		}
	case n < 19:
		return "a list", func(ctx context.Context) error {
			_, err := w.images.ListImages(ctx, &cri.ListImagesRequest{})
			return err
		}
	default:
		return "a status of " + ref, func(ctx context.Context) error {
			_, err := w.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: image})
			return err
		}
	}
}
