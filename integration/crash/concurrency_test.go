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
	callsARestart     = 45 // of all workers
	// callTimeout is generous: what takes longer under the race detector waits for something that does not come.
	callTimeout = 2 * time.Minute
	// retryUnavailable is how long a caller waits whom nobody answered, as kubelet does.
	retryUnavailable = 50 * time.Millisecond
)

// TestConcurrency has everything done at once to a few images, by CRI, the imagepin command and ctr, while containerd, and the CRI with it, is
// ended or killed again and again and started anew. Every call returns, one that found nobody to answer it is made again, what is left is sound, and
// can be removed.
//
// IMAGEPIN_CONCURRENCY_BINARY names another containerd: make test-race runs it on one under the race detector, which must find nothing.
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
	c := newKillRig(t, node.Options{
		NoPods: true, Binary: os.Getenv("IMAGEPIN_CONCURRENCY_BINARY"), StartTimeout: 2 * time.Minute,
	})
	c.check.OtherTools = true
	for _, repo := range crashRepos {
		c.data(repo+":1", "0")
	}
	images := cri.NewImageServiceClient(redialed(t, c.Node))
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
	if want := concurrentWorkers * concurrentCalls / callsARestart; restarts != want {
		t.Errorf("containerd was started %d times anew, not %d", restarts, want)
	}
	c.dropForeignLeases()
	c.sound("after all calls")
	c.purge("after all calls")
	if logs := c.Logs(); strings.Contains(logs, "DATA RACE") {
		_, race, _ := strings.Cut(logs, "WARNING: DATA RACE")
		t.Errorf("a data race:\n%s", race[:min(len(race), 5000)])
	}
}

// redialed is a connection to a node that goes on over its restarts: the node's own ends with its process.
func redialed(t *testing.T, n *node.Node) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryUnavailable, Multiplier: 1, MaxDelay: retryUnavailable},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// restartBetween starts containerd anew after every so many calls that have returned, until there are no more: ended in turn as a service manager
// does it, and killed.
func (c *killRig) restartBetween(returned <-chan struct{}) (restarts int, _ error) {
	calls := 0
	for range returned {
		if calls++; calls%callsARestart > 0 {
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

// call does one thing, chosen at random, and fails the test where it does not return in time. That it fails is no failure: others remove what it
// needs. Where containerd does not answer it is done again.
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
		case <-time.After(retryUnavailable):
		case <-ctx.Done():
		}
	}
}

// unanswered tells whether a call failed because containerd was not there, or went away. Of the commands only the text is known.
func unanswered(err error) bool {
	if err == nil {
		return false
	}
	if s, ok := status.FromError(err); ok {
		return s.Code() == codes.Unavailable
	}
	for _, said := range []string{"Unavailable", "connection refused", "connection reset", "no such file or directory", "EOF", "failed to dial"} {
		if strings.Contains(err.Error(), said) {
			return true
		}
	}
	return false
}

// choose gives one thing to do, and what it is.
func (w *concurrentWorker) choose() (what string, do func(context.Context) error) {
	repo := crashRepos[w.IntN(len(crashRepos))]
	ref := w.Reg.Ref(repo + ":1")
	handler := anywhere[w.IntN(len(anywhere))]
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
		patience := time.Duration(w.IntN(50)) * time.Millisecond
		return "a pull whose caller gives up", func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, patience)
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
			_, err := w.Reg.Push(repo+":1", w.version(version))
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
