package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// pauseTag is the sandbox image.
const pauseTag = "pause:3.10"

// options are the options of the command line.
type options struct {
	run     *regexp.Regexp // rows to measure; nil for all
	n       int            // repetitions
	sizes   sizes
	profile string // directory for profiles; empty for none
	// profileFor is the duration of each CPU profile.
	profileFor time.Duration
}

// bench measures.
type bench struct {
	options
	log     io.Writer // progress
	reg     *registry.Registry
	limited string            // address of the registry that limits each connection; empty until it is used
	other   string            // address of the registry that drips; empty until it is used
	slow    string            // address of the registry that limits all connections together; empty until it is used
	pushed  map[string]pushed // by tag
	bases   map[tree]*base
	filled  filled
	// roots of the daemons. They stay until the end, because removing many files slows down later work.
	roots   []string
	results []*result
	shares  []*shares
	courses []*course
	// decompressions are the times of [bench.decompression].
	decompressions map[tree]imageTimes
	// versions of the daemons.
	versions []string
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// measure runs the scenarios that have a wanted row.
func (b *bench) measure(ctx context.Context, all []scenario) (err error) {
	if err := node.Sweep(); err != nil {
		return fmt.Errorf("removing the files of an earlier process: %w", err)
	}
	defer func() {
		err = errors.Join(err, b.dropFilled())
		const atATime = 4 // each root has thousands of files
		err = errors.Join(err, concurrently(b.roots, atATime, os.RemoveAll))
	}()
	if b.reg, err = registry.New(); err != nil {
		return err
	}
	defer b.reg.Close()
	b.bases = make(map[tree]*base)
	b.decompressions = make(map[tree]imageTimes)
	b.pushed = make(map[string]pushed)
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return err
	}
	if _, err := b.reg.Push(pauseTag, pause); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s scenario) bool {
		return s.apart && b.run == nil && !b.sizes.exact || !slices.ContainsFunc(s.rows, b.wanted)
	})
	if len(all) == 0 {
		return errors.New("no row matches -run")
	}
	var p *pair
	defer func() {
		if p != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for i, s := range all {
		if p == nil || s.fleet != all[i-1].fleet {
			if p != nil {
				if err := p.close(); err != nil {
					return err
				}
			}
			if p, err = b.open(ctx, s.fleet); err != nil {
				return err
			}
		}
		if err := b.scenario(ctx, p, s); err != nil {
			return fmt.Errorf("%s: %w", s.rows[0].name, err)
		}
	}
	return nil
}

func (b *bench) wanted(r row) bool { return b.run == nil || b.run.MatchString(r.name) }

// scenario runs one scenario on both sides in turns.
func (b *bench) scenario(ctx context.Context, p *pair, s scenario) error {
	b.say("%s", s.rows[0].name)
	if s.setup != nil {
		if err := s.setup(ctx, b, p); err != nil {
			return err
		}
	}
	results := make(map[string]*result)
	for _, r := range s.rows {
		results[r.name] = &result{row: r}
		if b.wanted(r) {
			b.results = append(b.results, results[r.name])
		}
	}
	var fails error
	repetitions := b.n
	if s.most > 0 {
		repetitions = min(repetitions, s.most)
	}
	for i := range repetitions {
		for _, side := range p.order(i) {
			if !side.ours && fails != nil {
				continue
			}
			// This run must not wait for the writes of an earlier one.
			syscall.Sync()
			got, err := s.run(ctx, b, side)
			b.reg.Reset()
			if err != nil && s.stockFails && !side.ours && ctx.Err() == nil {
				fails = err
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
			if s.shares != nil {
				s.shares.keep(side.ours)
			}
			if s.course != nil {
				s.course.keep(side.ours)
			}
			for name, v := range got {
				r := results[name]
				if r == nil {
					return fmt.Errorf("%s returned a sample of %q, which is not a row", side, name)
				}
				if side.ours {
					r.ours = append(r.ours, v)
				} else {
					r.stock = append(r.stock, v)
				}
			}
		}
	}
	for _, r := range s.rows {
		results[r.name].fails = fails
		if b.wanted(r) {
			b.say("  %s", strings.Join(results[r.name].cells(), "  "))
		}
	}
	if s.shares != nil && b.wanted(s.rows[0]) {
		if err := b.share(s.shares); err != nil {
			return err
		}
	}
	if s.course != nil && b.wanted(s.rows[0]) {
		b.courses = append(b.courses, s.course)
	}
	return b.profileOf(ctx, p.ours, s)
}

// profileOf writes a heap profile of imagepin, and a CPU profile while it repeats a scenario.
func (b *bench) profileOf(ctx context.Context, s *side, what scenario) error {
	if b.profile == "" {
		return nil
	}
	if err := os.MkdirAll(b.profile, 0o755); err != nil {
		return err
	}
	heap, err := s.pprof(ctx, "heap?gc=1")
	if err != nil {
		return err
	}
	path := filepath.Join(b.profile, fileName(what.rows[0].name))
	if err := os.WriteFile(path+".heap.pprof", heap, 0o644); err != nil {
		return err
	}
	if what.restarts {
		return nil // a CPU profile ends with the process
	}
	type outcome struct {
		profile []byte
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		p, err := s.pprof(ctx, fmt.Sprintf("profile?seconds=%d", int(b.profileFor.Seconds())))
		done <- outcome{p, err}
	}()
	for {
		_, err := what.run(ctx, b, s)
		b.reg.Reset()
		select {
		case o := <-done:
			if err := errors.Join(err, o.err); err != nil {
				return err
			}
			return os.WriteFile(path+".pprof", o.profile, 0o644)
		default:
		}
		if err != nil {
			<-done
			return err
		}
	}
}

// fileName returns the file name for the name of a row.
func fileName(name string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-"), "-")
}
