package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// crashRounds returns the number of rounds of TestRandomKills.
func crashRounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_CRASH_ROUNDS")
	if s == "" {
		return 80
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_CRASH_ROUNDS: %v", err)
	}
	return n
}

// TestRandomKills kills containerd during pulls, removals and refreshes: at the n-th failpoint, or when it publishes
// the n-th event, which is between failpoints. The node is consistent after each restart. Every tenth round also
// removes everything. One node has the native snapshotter beside overlayfs, the other one EROFS.
//
// IMAGEPIN_CRASH_SEED repeats the choices of an earlier run.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	rounds, seed := crashRounds(t), uint64(time.Now().UnixNano())
	if s := os.Getenv("IMAGEPIN_CRASH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("IMAGEPIN_CRASH_SEED: %v", err)
		}
	}
	const nodes = 2
	for i := range nodes {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			t.Logf("IMAGEPIN_CRASH_SEED=%d", seed)
			r := &randomKills{
				killRig: newKillRig(t, testkit.SecondSnapshotters[i], node.Options{NoPods: true, DiscardUnpackedLayers: i%2 == 1}),
				Rand:    rand.New(rand.NewPCG(seed, uint64(i))),
			}
			for range rounds / nodes {
				r.round()
			}
			r.removeAll("at the end")
			t.Logf("%d rounds, %d kills by failpoint or event: %v", r.rounds, r.kills, r.at)
		})
	}
}

type randomKills struct {
	*killRig
	*rand.Rand
	rounds, kills int
	at            map[string]int
}

var crashRepos = []string{"app", "web", "pinned/app"}

// round runs a few operations concurrently, kills containerd and checks the node after a restart.
func (r *randomKills) round() {
	r.T.Helper()
	if r.at == nil {
		r.at = map[string]int{}
	}
	r.rounds++
	ctx, cancel := context.WithTimeout(r.Ctx, time.Minute)
	defer cancel()
	var ops []func() error
	for range 1 + r.IntN(3) {
		ops = append(ops, r.operation(ctx))
	}
	killed := func() {}
	if how := r.IntN(2); how == 0 {
		r.arm(fmt.Sprintf("*:%d", 1+r.IntN(25)))
	} else {
		killed = r.killAtEvent(ctx, 1+r.IntN(12))
	}
	var running sync.WaitGroup
	for _, op := range ops {
		running.Go(func() { _ = op() }) // most fail: containerd dies
	}
	running.Wait()
	cancel()
	killed()
	if at := r.diedAt(); at != "" {
		r.kills++
		r.at[at]++
	}
	what := fmt.Sprintf("after round %d, killed at %q", r.rounds, r.diedAt())
	r.revive()
	r.wantConsistent(what)
	if r.rounds%10 == 0 {
		r.removeAll(what)
	}
}

// operation returns a random operation.
func (r *randomKills) operation(ctx context.Context) func() error {
	r.T.Helper()
	repo := crashRepos[r.IntN(len(crashRepos))]
	ref := r.Reg.Ref(repo + ":1")
	handler := allHandlers[r.IntN(len(allHandlers))]
	switch r.IntN(6) {
	case 0:
		return func() error { return r.RemoveImage(ctx, ref, "") }
	case 1:
		return func() error { return r.RemoveImage(ctx, ref, handler) }
	case 2:
		r.pushData(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { return r.refresh(ref) }
	default:
		r.pushData(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { _, err := r.Pull(ctx, ref, handler); return err }
	}
}

// killAtEvent kills containerd when it publishes its n-th event from now. The returned function waits for the kill or
// the end of the context.
func (r *randomKills) killAtEvent(ctx context.Context, n int) func() {
	r.T.Helper()
	ch, errs := r.Client().EventService().Subscribe(ctx)
	pid := r.PID()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			select {
			case <-ch:
			case <-errs:
				return
			}
		}
		p, err := os.FindProcess(pid)
		if err == nil && p.Kill() == nil {
			r.kills++
			r.at["event"]++
		}
	}()
	return func() { <-done }
}
