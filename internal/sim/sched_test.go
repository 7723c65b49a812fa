package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// errKilled is the error of all calls of a process after its kill: none of its later writes takes effect.
var errKilled = errors.New("the process has been killed")

// errAway is the error of all calls of containerd's services while containerd does not run.
var errAway = fmt.Errorf("containerd does not run: %w", errdefs.ErrUnavailable)

// scheduler runs one goroutine at a time. The seed decides which one.
type scheduler struct {
	// wrote is called for each write of a call that only reads.
	wrote func(ctx context.Context, what string)
	seed  uint64
	start time.Time

	// How this history is scheduled.
	plan plan

	mu             sync.Mutex
	rng            *rand.Rand // of the scheduler alone
	parked         []*parked
	arrivals       int
	woken          chan struct{}
	counts         map[string]int
	rank           map[string]float64
	stalled        map[string]int // by actor: the step until which it is stalled
	concurrentFrom int            // step at which the concurrent actions start
	last           string         // actor of the last step
	printed        string
	names          map[string]string // by digest: the name that replaces it in the history

	log   []string
	hash  uint64
	steps int // turns; repetitions of one step in a row count once
	turns int
	extra func(string) // called with every line
}

// plan configures the choices of a history.
type plan struct {
	sticky  float64 // probability that the goroutine of the last step continues
	ranked  bool    // the actor with the highest rank runs first; otherwise a random one
	changes []int   // steps at which the highest rank becomes the lowest
	stalls  []int   // steps after concurrentFrom at which the actor of the last step is stalled
	reads   float64 // fraction of content reads that are steps
	after   float64 // fraction of writes with an additional step after them
	slow    float64 // probability of a delay before a step
}

// parked is a goroutine that waits for its turn.
type parked struct {
	actor, what string
	number      int
	owner       *process // nil: no process
	turn        chan error
}

func newScheduler(seed uint64) *scheduler {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	s := &scheduler{
		seed: seed, start: time.Now(), rng: rng, woken: make(chan struct{}, 1),
		counts: make(map[string]int), rank: make(map[string]float64), stalled: make(map[string]int), names: make(map[string]string),
	}
	s.plan = plan{
		sticky: []float64{0, 0.5, 0.8, 0.95}[rng.IntN(4)],
		ranked: rng.IntN(3) == 0,
		reads:  []float64{0, 0, 0.1, 1}[rng.IntN(4)],
		after:  []float64{0, 0.3, 1}[rng.IntN(3)],
	}
	if rng.IntN(4) == 0 {
		s.plan.slow = 0.02
	}
	for range rng.IntN(4) {
		s.plan.changes = append(s.plan.changes, rng.IntN(250))
	}
	for range rng.IntN(5) {
		s.plan.stalls = append(s.plan.stalls, rng.IntN(120))
	}
	return s
}

type actorKey struct{}

// as sets the name of the actor in a context.
func as(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

func actorOf(ctx context.Context) string {
	if name, ok := ctx.Value(actorKey{}).(string); ok {
		return name
	}
	return "imagepin"
}

type readingKey struct{}

// reading returns a context for a call that only reads, or ctx itself for other calls.
func reading(ctx context.Context, method string) context.Context {
	if !slices.Contains([]string{"ImageStatus", "ListImages", "StreamImages", "ImageFsInfo", "Images", "Inspect", "Resolve", "Pins", "StreamPins", "Status", "DiskUsage", "Diff", "LockStatus", "Version"}, method) {
		return ctx
	}
	return context.WithValue(ctx, readingKey{}, true)
}

func onlyReads(ctx context.Context) bool { return ctx.Value(readingKey{}) != nil }

// isWrite matches the steps that write to containerd.
var isWrite = regexp.MustCompile(`(^|[. ])(create|update|delete|commit|write|abort|add|remove|prepare|transaction)\b`)

// step parks the caller until its turn. It fails if the caller has given up a call that crosses a socket.
func (s *scheduler) step(ctx context.Context, owner *process, format string, args ...any) error {
	p := &parked{actor: actorOf(ctx), what: fmt.Sprintf(format, args...), owner: owner, turn: make(chan error, 1)}
	if onlyReads(ctx) && isWrite.MatchString(p.what) {
		s.wrote(ctx, p.what)
	}
	s.mu.Lock()
	if err := owner.state(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.arrivals++
	p.number = s.arrivals
	s.parked = append(s.parked, p)
	s.mu.Unlock()
	select {
	case s.woken <- struct{}{}:
	default:
	}
	if err := <-p.turn; err != nil || owner == nil || !owner.remote {
		return err
	}
	return ctx.Err()
}

// some reports whether an optional step is taken this time.
func (s *scheduler) some(ctx context.Context, share float64, what string) bool {
	if share == 0 || share == 1 {
		return share == 1
	}
	key := actorOf(ctx) + "|" + what
	s.mu.Lock()
	n := s.counts[key]
	s.counts[key]++
	s.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", s.seed, key, n)
	return float64(h.Sum64()%1000) < share*1000
}

// write adds a line to the history.
func (s *scheduler) write(actor, format string, args ...any) {
	line := fmt.Sprintf("%4d %10s  %-12s %s", s.steps, time.Since(s.start).Round(time.Microsecond), actor, s.plain(fmt.Sprintf(format, args...)))
	s.mu.Lock()
	s.log = append(s.log, line)
	h := fnv.New64a()
	fmt.Fprintf(h, "%x%s", s.hash, line)
	s.hash = h.Sum64()
	extra := s.extra
	s.mu.Unlock()
	if extra != nil {
		extra(line)
	}
}

// setName sets the name that replaces a digest in the history.
func (s *scheduler) setName(digest, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[digest] = name
}

// plain replaces digests that have names, and shortens the others.
func (s *scheduler) plain(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.Contains(text, "sha256:") {
		return text
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "sha256:")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n := 0
		for n < len(after) && strings.IndexByte("0123456789abcdef", after[n]) >= 0 {
			n++
		}
		if name, ok := s.names["sha256:"+after[:n]]; ok {
			b.WriteString(name)
		} else {
			b.WriteString("sha256:" + after[:min(n, 8)])
		}
		text = after[n:]
	}
}

// choose selects one of the parked goroutines.
func (s *scheduler) choose() *parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) == 0 {
		return nil
	}
	slices.SortFunc(s.parked, func(a, b *parked) int {
		return cmp.Or(cmp.Compare(a.actor, b.actor), cmp.Compare(a.what, b.what), cmp.Compare(a.number, b.number))
	})
	s.stall()
	chosen := s.anyone()
	if s.plan.ranked {
		for _, p := range s.parked {
			if _, ok := s.rank[p.actor]; !ok {
				s.rank[p.actor] = s.rng.Float64()
			}
		}
		if slices.Contains(s.plan.changes, s.steps) && s.last != "" {
			s.rank[s.last] = -s.rng.Float64()
		}
		best := s.parked[chosen].actor
		for _, p := range s.parked {
			if s.rank[p.actor] > s.rank[best] && s.steps >= s.stalled[p.actor] {
				best = p.actor
			}
		}
		chosen = s.ofActor(best)
	} else if s.rng.Float64() < s.plan.sticky && s.steps >= s.stalled[s.last] {
		if i := s.ofActor(s.last); i >= 0 {
			chosen = i
		}
	}
	p := s.parked[chosen]
	s.parked = slices.Delete(s.parked, chosen, chosen+1)
	s.last = p.actor
	return p
}

// stall stalls the actor of the last step if the plan requires it, so that other actors run between two of its steps.
func (s *scheduler) stall() {
	if s.concurrentFrom == 0 || s.last == "" || s.stalled[s.last] > s.steps || !slices.Contains(s.plan.stalls, s.steps-s.concurrentFrom) {
		return
	}
	s.stalled[s.last] = s.steps + 5 + s.rng.IntN(60)
}

// anyone returns the index of a random parked goroutine, preferably one whose actor is not stalled.
func (s *scheduler) anyone() int {
	var free []int
	for i, p := range s.parked {
		if s.steps >= s.stalled[p.actor] {
			free = append(free, i)
		}
	}
	if len(free) == 0 {
		return s.rng.IntN(len(s.parked))
	}
	return free[s.rng.IntN(len(free))]
}

// ofActor returns the index of a random parked goroutine of an actor, or -1.
func (s *scheduler) ofActor(actor string) int {
	var own []int
	for i, p := range s.parked {
		if p.actor == actor {
			own = append(own, i)
		}
	}
	if len(own) == 0 {
		return -1
	}
	return own[s.rng.IntN(len(own))]
}

// release continues a goroutine, and waits until it parks or ends.
func (s *scheduler) release(p *parked) {
	s.turns++
	time.Sleep(time.Microsecond)                           // so that two timers rarely fire at the same time
	if line := p.actor + " " + p.what; line != s.printed { // a poll is printed once
		s.printed = line
		s.steps++
		time.Sleep(time.Microsecond) // so that two timers rarely fire at the same time
		s.write(p.actor, "%s%s", p.what, suffix(s.alive(p.owner)))
	}
	p.turn <- s.alive(p.owner)
	synctest.Wait()
}

// kill makes all parked and later calls of a process fail.
func (s *scheduler) kill(owner *process) {
	s.mu.Lock()
	owner.dead = true
	var rest []*parked
	for _, p := range s.parked {
		if p.owner == owner {
			p.turn <- errKilled
		} else {
			rest = append(rest, p)
		}
	}
	s.parked = rest
	s.mu.Unlock()
}

// setAway makes the calls of a process fail until containerd runs again. Those that are parked fail in their turn.
func (s *scheduler) setAway(owner *process, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner.away = away
}

// run gives turns until no goroutine is parked and done returns true, or until no goroutine parks for the given time.
// It reports whether done returned true.
func (s *scheduler) run(patience time.Duration, maxTurns int, done func() bool) bool {
	for s.turns < maxTurns {
		synctest.Wait()
		if s.plan.slow > 0 && s.rng.Float64() < s.plan.slow {
			time.Sleep(time.Duration(s.rng.IntN(int(50 * time.Millisecond))))
			continue
		}
		if p := s.choose(); p != nil {
			s.release(p)
			continue
		}
		if done() {
			return true
		}
		select {
		case <-s.woken:
		case <-time.After(patience):
			if s.idle() {
				return done()
			}
		}
	}
	return false
}

func (s *scheduler) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.parked) == 0
}

// pass gives turns for a duration.
func (s *scheduler) pass(d time.Duration, maxTurns int) {
	for until := time.Now().Add(d); time.Now().Before(until) && s.turns < maxTurns; {
		synctest.Wait()
		if p := s.choose(); p != nil {
			s.release(p)
			continue
		}
		select {
		case <-s.woken:
		case <-time.After(time.Until(until)):
		}
	}
}
