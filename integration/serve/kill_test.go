package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

const killRounds = 16

// TestKilledAtRandom kills imagepin serve, containerd, or both at a registry request or at a containerd event, while
// images are pulled and removed. After each restart the node has no problems, and in the end all images can be removed.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("IMAGEPIN_CRASH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("IMAGEPIN_CRASH_SEED: %v", err)
		}
	}
	t.Logf("IMAGEPIN_CRASH_SEED=%d", seed)
	k := &killer{
		serveRig: started(t, node.Options{NoPods: true, Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}}}),
		Rand:     rand.New(rand.NewPCG(seed, 0)),
	}
	for round := range killRounds {
		k.round(round)
	}
	for _, repo := range killRepos {
		k.must(k.RemoveImage(k.Ctx, k.Reg.Ref(repo+":1"), ""))
	}
	k.wantNoProblems("after all images were removed", checker.Options{})
}

type killer struct {
	*serveRig
	*rand.Rand
}

var killRepos = []string{"one", "two", "three"}

// round pulls and removes images concurrently, kills processes meanwhile, and restarts them.
func (k *killer) round(number int) {
	k.T.Helper()
	for _, repo := range killRepos {
		k.push(repo+":1", fmt.Sprint(number/2))
	}
	victims := k.IntN(3)
	pids := [][]int{{k.PID()}, {k.ContainerdPID()}, {k.PID(), k.ContainerdPID()}}[victims]
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		close(killed)
	})
	ctx, cancel := context.WithCancel(k.Ctx)
	defer cancel()
	if k.IntN(2) == 0 {
		k.atRequest(1+k.IntN(12), kill)
	} else {
		k.atEvent(ctx, 1+k.IntN(20), kill)
	}
	var running sync.WaitGroup
	for _, repo := range killRepos {
		ref, handler := k.Reg.Ref(repo+":1"), []string{"", "second"}[k.IntN(2)]
		call := func() { _, _ = k.Pull(ctx, ref, handler) } // most fail
		if k.IntN(4) == 0 {
			call = func() { _ = k.RemoveImage(ctx, ref, "") }
		}
		running.Go(call)
	}
	idle := make(chan struct{})
	go func() { running.Wait(); close(idle) }()
	select {
	case <-killed:
	case <-idle:
		kill() // there were too few requests or events
	}
	k.Reg.SetFault(nil)
	if victims != 1 {
		k.must(k.EndServe(syscall.SIGKILL))
	}
	if victims != 0 {
		k.must(k.EndContainerd(syscall.SIGKILL))
		k.must(k.StartContainerd())
	}
	if victims != 1 {
		k.must(k.StartServe())
	}
	k.must(k.WaitReady(k.Ctx))
	// A pull that waited for containerd may continue.
	<-idle
	k.wantNoProblems(fmt.Sprintf("in round %d", number), checker.Options{})
}

// atRequest calls kill at the n-th request to the registry.
func (k *killer) atRequest(n int, kill func()) {
	var seen atomic.Int64
	k.Reg.SetFault(func(registry.Request) *registry.Fault {
		if seen.Add(1) == int64(n) {
			kill()
		}
		return nil
	})
}

// atEvent calls kill at the n-th event of containerd.
func (k *killer) atEvent(ctx context.Context, n int, kill func()) {
	events, failed := k.Client().EventService().Subscribe(ctx)
	go func() {
		for range n {
			select {
			case <-events:
			case <-failed:
				return
			}
		}
		kill()
	}()
}
