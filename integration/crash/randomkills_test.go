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
)

// crashRounds is how often TestRandomKills kills.
func crashRounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_CRASH_ROUNDS")
	if s == "" {
		return 200
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_CRASH_ROUNDS: %v", err)
	}
	return n
}

// TestRandomKills kills containerd while it pulls, removes and refreshes: at the n-th failpoint, or when it publishes the n-th event, which
// comes from between the failpoints. After each start everything is sound, and now and then all is removed and nothing is left.
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
				killRig: newKillRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: i%2 == 1}),
				Rand:    rand.New(rand.NewPCG(seed, uint64(i))),
			}
			for range rounds / nodes {
				r.round()
			}
			r.purge("in the end")
			t.Logf("%d rounds, %d killed, at %v", r.rounds, r.kills, r.at)
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

// round does a few things at once until containerd is killed.
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
	if at := r.died(); at != "" {
		r.kills++
		r.at[at]++
	}
	what := fmt.Sprintf("in round %d, killed at %q", r.rounds, r.died())
	r.revive()
	r.sound(what)
	if r.rounds%10 == 0 {
		r.purge(what)
	}
}

// operation is one thing to do, chosen at random.
func (r *randomKills) operation(ctx context.Context) func() error {
	r.T.Helper()
	repo := crashRepos[r.IntN(len(crashRepos))]
	ref := r.Reg.Ref(repo + ":1")
	handler := anywhere[r.IntN(len(anywhere))]
	switch r.IntN(6) {
	case 0:
		return func() error { return r.RemoveImage(ctx, ref, "") }
	case 1:
		return func() error { return r.RemoveImage(ctx, ref, handler) }
	case 2:
		r.data(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { return r.refreshed(ref) }
	default:
		r.data(repo+":1", strconv.Itoa(r.IntN(3)))
		return func() error { _, err := r.Pull(ctx, ref, handler); return err }
	}
}

// killAtEvent kills containerd when it publishes its n-th event. The returned function waits for that, or until the context ends.
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
