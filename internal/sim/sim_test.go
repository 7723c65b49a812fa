package sim

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	maxTurns = 150_000
	patience = 5 * time.Minute
)

// history runs one history and returns the world after it.
func history(t *testing.T, seed uint64, dir string, print func(string)) (w *world) {
	cryptotest.SetGlobalRandom(t, seed)
	synctest.Test(t, func(t *testing.T) {
		var err error
		if w, err = newWorld(seed, dir); err != nil {
			t.Fatal(err)
		}
		w.extra = print
		defer func() {
			if err := w.db.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := w.runHistory(); err != nil {
			t.Fatal(err)
		}
	})
	return w
}

// runHistory runs the history of a world.
func (w *world) runHistory() error {
	w.write("history", "seed %d: %+v, %+v", w.seed, w.choice, w.plan)
	w.cri.start()
	if err := w.startProcess(); err != nil {
		return err
	}
	defer func() {
		w.proc.kill()
		w.cri.end()
		w.drain()
	}()
	settled := true
	run := func() {
		if settled {
			settled = w.run(patience, maxTurns, w.over)
		}
	}
	run()
	for i, what := range w.choice.before {
		name := fmt.Sprintf("%s-%d", strings.Fields(what)[0], i)
		w.begin(name, func(ctx context.Context) { w.caller(ctx, name).act(what) })
		run()
	}
	if w.choice.expire {
		w.pass(25*time.Hour-time.Since(w.start), maxTurns) // until shortly before the sweep of pins
	}
	w.write("history", "concurrent actions")
	w.concurrentFrom = w.steps
	for i, what := range w.choice.actors {
		name := fmt.Sprintf("%s-%c", strings.Fields(what)[0], 'a'+i)
		impatient := w.rng.IntN(4) == 0
		turns := w.rng.IntN(60)
		w.begin(name, func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if impatient {
				w.begin(name+"-gives-up", func(giveUp context.Context) {
					for range turns {
						_ = w.step(giveUp, nil, "waits")
					}
					cancel()
				})
			}
			w.caller(ctx, name).act(what)
		})
	}
	if w.choice.kill {
		turns := w.rng.IntN(60)
		w.begin("kill", func(ctx context.Context) {
			for range turns {
				_ = w.step(ctx, nil, "waits")
			}
			_ = w.step(ctx, nil, "kills")
			if err := w.restart(ctx); err != nil {
				w.wrong(neverSettles, "restart: %v", err)
			}
		})
	}
	run()
	if !settled {
		var waiting []string
		w.facts.mu.Lock()
		for _, o := range w.facts.ops {
			if !o.ended {
				waiting = append(waiting, o.actor+" "+o.method+" "+o.ref)
			}
		}
		w.facts.mu.Unlock()
		w.wrong(neverSettles, "not settled after %d turns, calls without an answer: %q", w.turns, waiting)
		return nil
	}
	if w.choice.private {
		w.registry.setAway(true)
		w.begin("offline", func(ctx context.Context) { w.caller(ctx, "offline").startOffline() })
		run()
		w.registry.setAway(false)
	}
	w.write("history", "all actions ended, grace times pass")
	w.pass(3*time.Hour, maxTurns)
	if err := w.collect(inK8s(context.Background())); err != nil {
		return err
	}
	c, err := newCheck(w)
	if err != nil {
		return err
	}
	c.all()
	w.begin("check", func(ctx context.Context) {
		c.listed(ctx)
		c.activePins(ctx)
		c.activeLock(ctx)
	})
	run()
	return nil
}

// restart kills imagepin and starts it again. If imagepin runs in containerd, it does the same with containerd's CRI, and if
// it runs beside containerd, it kills containerd instead in half of the histories.
func (w *world) restart(ctx context.Context) error {
	old := w.proc
	w.facts.killedAt.Store(int64(w.steps))
	if w.choice.socket && w.seed%2 == 0 {
		w.restartContainerd(ctx, old)
		return nil
	}
	w.kill(old)
	old.cancel()
	if !w.choice.socket {
		w.cri.end()
	}
	old.service.Close()
	w.reconfigured.Store(w.choice.reconfigure)
	if !w.choice.socket {
		w.cri.start()
	}
	return w.startProcess()
}

// restartContainerd kills containerd, and starts it again after a while. imagepin runs beside it, and continues.
func (w *world) restartContainerd(ctx context.Context, beside *process) {
	w.setAway(beside, true)
	w.cri.end()
	w.mu.Lock()
	select {
	case w.stream <- errAway:
	default:
	}
	w.mu.Unlock()
	time.Sleep(3 * time.Second) // simulated; imagepin tries to list images every second meanwhile
	_ = w.step(ctx, nil, "starts containerd again")
	w.facts.killedAt.Store(int64(w.steps))
	w.cri.start()
	w.setAway(beside, false)
}

// drain lets the remaining goroutines of killed processes end.
func (w *world) drain() {
	for range 1000 {
		synctest.Wait()
		w.mu.Lock()
		over := w.running == 0
		w.mu.Unlock()
		p := w.choose()
		if p == nil && over {
			break
		}
		if p != nil {
			p.turn <- errKilled
			continue
		}
		time.Sleep(time.Minute)
	}
}

func quiet() {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.PanicLevel)
}

// TestHistories checks the invariants after histories. They run in processes with GOMAXPROCS=1, so that a seed
// determines a history.
func TestHistories(t *testing.T) {
	if seed := os.Getenv("IMAGEPIN_SIM_SEED"); seed != "" {
		from, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out, failed := child(t, from, 1, true)
		t.Log(out)
		if len(failed) > 0 {
			t.Fail()
		}
		return
	}
	limit := time.Duration(math.MaxInt64)
	if d := os.Getenv("IMAGEPIN_SIM_TIME"); d != "" {
		var err error
		if limit, err = time.ParseDuration(d); err != nil {
			t.Fatal(err)
		}
	}
	total, first := histories, uint64(1)
	if limit < math.MaxInt64 {
		total = math.MaxInt
	}
	if n := os.Getenv("IMAGEPIN_SIM_HISTORIES"); n != "" {
		var err error
		if total, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	if n := os.Getenv("IMAGEPIN_SIM_FIRST"); n != "" {
		var err error
		if first, err = strconv.ParseUint(n, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	const each = 50
	var (
		mu     sync.Mutex
		failed []failure
		todo   = make(chan uint64)
		wg     sync.WaitGroup
	)
	for range runtime.NumCPU() {
		wg.Go(func() {
			for from := range todo {
				_, f := child(t, from, min(each, total-int(from-first)), false)
				mu.Lock()
				failed = append(failed, f...)
				mu.Unlock()
			}
		})
	}
	start, done := time.Now(), 0
	for ; done < total && time.Since(start) < limit; done += each {
		todo <- first + uint64(done)
	}
	close(todo)
	wg.Wait()
	done = min(done, total)
	t.Logf("%d histories in %s", done, time.Since(start).Round(time.Second))
	report(t, done, failed)
}

// failure is an invariant that a history violated.
type failure struct {
	seed uint64
	name string
	what string
	log  []string // the history
}

func report(t *testing.T, total int, failed []failure) {
	byName := make(map[string][]failure)
	for _, f := range failed {
		byName[f.name] = append(byName[f.name], f)
	}
	for _, name := range sorted(byName) {
		all := byName[name]
		slices.SortFunc(all, func(a, b failure) int { return int(a.seed) - int(b.seed) })
		seeds := make(map[uint64]bool)
		var list []string
		for _, f := range all {
			if !seeds[f.seed] && len(list) < 12 {
				list = append(list, fmt.Sprint(f.seed))
			}
			seeds[f.seed] = true
		}
		shown := slices.MinFunc(all, func(a, b failure) int { return len(a.log) - len(b.log) })
		t.Errorf("%s: violated in %d of %d histories, seeds %s; IMAGEPIN_SIM_SEED replays one. The shortest is %d:\n%s\n%s",
			name, len(seeds), total, strings.Join(list, " "), shown.seed, strings.Join(shown.log, "\n"), shown.what)
	}
}

const childEnv = "IMAGEPIN_SIM_CHILD"

var (
	problemLine = regexp.MustCompile(`(?m)^SIM (\d+) (\S+) (.*)$`)
	logLine     = regexp.MustCompile(`(?m)^HISTORY (\d+) (.*)$`)
)

// child runs histories in another process. It returns its output and the failures.
func child(t *testing.T, from uint64, n int, print bool) (string, []failure) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestChild$", "-test.v", "-test.timeout", "20m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %t", childEnv, from, n, print), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	var failed []failure
	last := from
	logs := make(map[uint64][]string)
	for _, m := range logLine.FindAllStringSubmatch(string(out), -1) {
		seed, _ := strconv.ParseUint(m[1], 10, 64)
		logs[seed] = append(logs[seed], m[2])
	}
	for _, m := range problemLine.FindAllStringSubmatch(string(out), -1) {
		seed, _ := strconv.ParseUint(m[1], 10, 64)
		if m[2] == "begin" {
			last = seed
			continue
		}
		failed = append(failed, failure{seed, m[2], m[3], logs[seed]})
	}
	if err != nil && len(failed) == 0 {
		text := string(out)
		failed = append(failed, failure{last, "crash", fmt.Sprintf("%v\n%s", err, text[max(0, len(text)-4000):]), nil})
	}
	return string(out), failed
}

// TestChild runs the histories of one process of TestHistories.
func TestChild(t *testing.T) {
	var (
		from  uint64
		n     int
		print bool
	)
	if _, err := fmt.Sscanf(os.Getenv(childEnv), "%d %d %t", &from, &n, &print); err != nil {
		return
	}
	quiet()
	dir := t.TempDir()
	var printer func(string)
	if print {
		printer = func(line string) { fmt.Println(line) }
	}
	for seed := from; seed < from+uint64(n); seed++ {
		fmt.Printf("SIM %d begin history\n", seed)
		w := history(t, seed, dir, printer)
		for _, line := range w.log {
			if len(w.problems) > 0 && !print {
				fmt.Printf("HISTORY %d %s\n", seed, strings.ReplaceAll(line, "\n", " "))
			}
		}
		for _, p := range w.problems {
			fmt.Printf("SIM %d %s %s\n", seed, p.Name, strings.ReplaceAll(p.What, "\n", " "))
		}
		if len(w.problems) > 0 || os.Getenv("IMAGEPIN_SIM_TWICE") != "" {
			again := history(t, seed, dir, nil)
			if again.hash != w.hash {
				fmt.Printf("SIM %d %s %s\n", seed, notDeterministic, difference(w.log, again.log))
				if to := os.Getenv("IMAGEPIN_SIM_TWICE"); to != "" {
					_ = os.WriteFile(fmt.Sprintf("%s/%d.1", to, seed), []byte(strings.Join(w.log, "\n")), 0o600)
					_ = os.WriteFile(fmt.Sprintf("%s/%d.2", to, seed), []byte(strings.Join(again.log, "\n")), 0o600)
				}
			}
		}
		if seed%10 == 0 {
			debug.FreeOSMemory()
		}
	}
}

// difference describes the first difference between two histories.
func difference(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d: %q and %q", i, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(a), len(b))
}
