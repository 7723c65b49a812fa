package integration

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

const (
	concurrentWorkers = 8
	concurrentCalls   = 40 // of each worker
	// callTimeout is generous: what takes longer under the race detector waits for something that does not come.
	callTimeout = time.Minute
)

// TestConcurrency has everything done at once to a few images, by CRI, the imagepin command and ctr. Every call returns, what is left is sound, and
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
	c := newCrashRig(t, node.Options{
		NoPods: true, Binary: os.Getenv("IMAGEPIN_CONCURRENCY_BINARY"), StartTimeout: 2 * time.Minute,
	})
	c.check.OtherTools = true
	for _, repo := range crashRepos {
		c.data(repo+":1", "0")
	}
	var running sync.WaitGroup
	for w := range concurrentWorkers {
		running.Go(func() {
			worker := concurrentWorker{crashRig: c, Rand: rand.New(rand.NewPCG(seed, uint64(w)))}
			for range concurrentCalls {
				worker.call()
			}
		})
	}
	running.Wait()
	c.dropForeignLeases()
	c.sound("after all calls")
	c.purge("after all calls")
	if logs := c.Logs(); strings.Contains(logs, "DATA RACE") {
		_, race, _ := strings.Cut(logs, "WARNING: DATA RACE")
		t.Errorf("a data race:\n%s", race[:min(len(race), 5000)])
	}
}

type concurrentWorker struct {
	*crashRig
	*rand.Rand
}

// call does one thing, chosen at random, and fails the test where it does not return in time. That it fails is no failure: others remove what it needs.
func (w *concurrentWorker) call() {
	ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
	defer cancel()
	repo := crashRepos[w.IntN(len(crashRepos))]
	ref := w.reg.Ref(repo + ":1")
	handler := anywhere[w.IntN(len(anywhere))]
	what, err := "", error(nil)
	start := time.Now()
	switch n := w.IntN(20); {
	case n < 7:
		what = "pull"
		_, err = w.Pull(ctx, ref, handler)
	case n < 8:
		// One whose caller gives up.
		what = "pull given up"
		short, cancel := context.WithTimeout(ctx, time.Duration(w.IntN(50))*time.Millisecond)
		_, _ = w.Pull(short, ref, handler)
		cancel()
	case n < 11:
		what = "remove"
		err = w.RemoveImage(ctx, ref, []string{"", handler}[w.IntN(2)])
	case n < 12:
		what = "refresh"
		_, err = w.commandIn(ctx, "refresh", ref)
	case n < 13:
		what = "pin rm"
		_, err = w.commandIn(ctx, "pin", "rm", ref)
	case n < 14:
		what = "check"
		_, err = w.commandIn(ctx, "check")
	case n < 15:
		what = "ctr pull"
		_, err = w.Ctr(ctx, "images", "pull", "--local", "--plain-http", ref)
	case n < 16:
		what = "ctr rm"
		_, err = w.Ctr(ctx, "images", "rm", ref)
	case n < 17:
		what = "ctr tag"
		_, err = w.Ctr(ctx, "images", "tag", "--force", ref, w.reg.Ref("mine:"+strconv.Itoa(w.IntN(3))))
	case n < 18:
		what = "push"
		err = w.move(repo + ":1")
	case n < 19:
		what = "list"
		_, err = w.Images().ListImages(ctx, &cri.ListImagesRequest{})
	default:
		what = "status"
		_, err = w.ImageStatus(ctx, ref, handler)
	}
	if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded && time.Since(start) >= callTimeout {
		w.t.Errorf("%s of %s for handler %q did not return in %s: %v", what, ref, handler, callTimeout, err)
	}
}

// move makes a tag of the registry mean another image.
func (w *concurrentWorker) move(ref string) error {
	_, err := w.reg.Push(ref, w.version(strconv.Itoa(w.IntN(3))))
	return err
}
