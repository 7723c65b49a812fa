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

// pauseTag is the image of the pods' sandboxes.
const pauseTag = "pause:3.10"

// options are what the command line says.
type options struct {
	run     *regexp.Regexp // rows to measure; nil is all
	n       int            // repetitions
	sizes   sizes
	profile string // directory for CPU profiles; empty is none
	// profileFor is how long each profile is.
	profileFor time.Duration
}

// bench measures.
type bench struct {
	options
	log    io.Writer // what it is doing
	reg    *registry.Registry
	pushed map[string]pushed // by tag
	bases  map[tree]*base
	// roots of the daemons. They stay until the end: removing many files slows down what comes after.
	roots   []string
	results []*result
	// versions of the daemons.
	versions []string
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// measure runs the scenarios that have a row which was asked for.
func (b *bench) measure(ctx context.Context, all []scenario) (err error) {
	if err := node.Sweep(); err != nil {
		return fmt.Errorf("removing what an earlier process left: %w", err)
	}
	defer func() {
		for _, root := range b.roots {
			err = errors.Join(err, os.RemoveAll(root))
		}
	}()
	if b.reg, err = registry.New(); err != nil {
		return err
	}
	defer b.reg.Close()
	b.bases = make(map[tree]*base)
	b.pushed = make(map[string]pushed)
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return err
	}
	if _, err := b.reg.Push(pauseTag, pause); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s scenario) bool { return !slices.ContainsFunc(s.rows, b.wanted) })
	if len(all) == 0 {
		return errors.New("no row of the table has such a name")
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
	for i := range s.repetitions(b.n) {
		for _, side := range p.order(i) {
			if !side.ours && fails != nil {
				continue
			}
			// What an earlier run has left to write is not for this one to wait for.
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
			for name, v := range got {
				r := results[name]
				if r == nil {
					return fmt.Errorf("%s gave a sample of %q, which is no row", side, name)
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
	return b.profileOf(ctx, p.ours, s)
}

// profileOf writes a heap profile of ours, and a CPU profile while it does a scenario again and again.
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
		return nil // a profile ends with the process
	}
	type answer struct {
		profile []byte
		err     error
	}
	done := make(chan answer, 1)
	go func() {
		p, err := s.pprof(ctx, fmt.Sprintf("profile?seconds=%d", int(b.profileFor.Seconds())))
		done <- answer{p, err}
	}()
	for {
		_, err := what.run(ctx, b, s)
		b.reg.Reset()
		select {
		case a := <-done:
			if err := errors.Join(err, a.err); err != nil {
				return err
			}
			return os.WriteFile(path+".pprof", a.profile, 0o644)
		default:
		}
		if err != nil {
			<-done
			return err
		}
	}
}

// fileName is a row's name as a file is called.
func fileName(name string) string {
	return strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-"), "-")
}
