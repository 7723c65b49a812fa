package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// quiet is how long a package or a command runs before a line says that it has begun: most are faster.
	quiet = time.Second
	// repeated is how many lines of a failure are printed again at the end.
	repeated = 40
	module   = "github.com/imagepin/imagepin/"
)

// printer prints what happens, and a summary at the end. Its methods are safe for concurrent use. What it prints for an
// event is in one piece.
type printer struct {
	mu      sync.Mutex
	w       io.Writer
	start   time.Time
	stages  map[string]*stage
	order   []string
	failed  []Event
	skipped []Event
	waiting map[string]*time.Timer // for the line that an item has begun
}

// stage is what is known of a stage.
type stage struct {
	begin, end            time.Time
	ended, failed, tested bool
	packages, tests       int
}

func newPrinter(w io.Writer) *printer {
	return &printer{w: w, start: time.Now(), stages: map[string]*stage{}, waiting: map[string]*time.Timer{}}
}

func (p *printer) handle(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stages[e.Stage]
	if s == nil {
		s = &stage{begin: time.Now()}
		p.stages[e.Stage] = s
		p.order = append(p.order, e.Stage)
	}
	s.end = time.Now()
	switch e.Kind {
	case StageBegins:
		if !s.tested {
			s.tested, s.begin = true, time.Now()
			p.line(e.Stage, "begins", "")
		}
	case StageEnds:
		if s.tested {
			s.ended = true
			p.line(e.Stage, "ended", fmt.Sprintf("%s, %s, %s", amount(s.packages, "package"), amount(s.tests, "test"), span(s.end.Sub(s.begin))))
		}
	case ItemBegins:
		key := e.Stage + "\x00" + e.Item
		p.waiting[key] = time.AfterFunc(quiet, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.waiting[key] != nil {
				p.line(e.Stage, "begins", short(e.Item))
			}
		})
	case Failure:
		p.failed = append(p.failed, e)
		p.block(e.Stage, "FAILED", title(e), e.Output)
	case ItemEnds:
		p.end(s, e)
	}
}

func (p *printer) end(s *stage, e Event) {
	key := e.Stage + "\x00" + e.Item
	w := p.waiting[key]
	fast := w != nil && w.Stop()
	delete(p.waiting, key)
	s.failed = s.failed || e.Failed
	if len(e.Skipped) > 0 {
		p.skipped = append(p.skipped, e)
	}
	if e.Empty || e.Command && fast {
		return
	}
	if e.Command {
		p.line(e.Stage, outcome(e.Failed), fmt.Sprintf("%-51s %7.1f s", short(e.Item), e.Seconds))
		return
	}
	s.packages++
	s.tests += e.Tests
	took := fmt.Sprintf("%.3fs", e.Seconds)
	if e.Cached {
		took = "(cached)"
	}
	tests := amount(e.Tests, "test")
	if e.Failed {
		p.block(e.Stage, outcome(true), fmt.Sprintf("%-40s %10s %9s", short(e.Item), tests, took), e.Output)
		return
	}
	// It is a line of go test, so that programs find it, as they find those of failures.
	io.WriteString(p.w, whole(e.Output)+fmt.Sprintf("ok  \t%s\t%s\t%s in %s at %s\n", e.Item, took, tests, e.Stage, span(time.Since(p.start))))
}

func outcome(failed bool) string {
	if failed {
		return "FAILED"
	}
	return "ok"
}

func (p *printer) line(stage, what, rest string) { p.block(stage, what, rest, "") }

func (p *printer) block(stage, what, rest, output string) {
	head := fmt.Sprintf("%6s  %-17s %-7s %s", span(time.Since(p.start)), stage, what, rest)
	io.WriteString(p.w, strings.TrimRight(head, " ")+"\n"+whole(output))
}

// whole returns a text with a newline at its end, unless it is empty.
func whole(text string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// summary prints what has failed again, what was skipped or did not run, and a table of the stages. The exit code is that of the
// run.
func (p *printer) summary(planned, leftOut []string, rc int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	if len(p.failed) > 0 {
		b.WriteString("\nFailed:\n")
	}
	for _, e := range p.failed {
		fmt.Fprintf(&b, "\n%s: %s\n%s", e.Stage, title(e), last(e.Output, repeated))
	}
	if len(p.skipped) > 0 {
		b.WriteString("\nSkipped:\n")
	}
	for _, e := range p.skipped {
		for _, s := range e.Skipped {
			fmt.Fprintf(&b, "  %s: %s %s: %s\n", e.Stage, short(e.Item), s.Test, s.Reason)
		}
	}
	fmt.Fprintf(&b, "\n%-18s %-11s %8s %6s %8s\n", "STAGE", "RESULT", "PACKAGES", "TESTS", "TIME")
	names := slices.Clone(planned)
	for _, name := range p.order {
		if s := p.stages[name]; !slices.Contains(names, name) && (s.failed || s.tested) {
			names = append(names, name)
		}
	}
	packages, tests := 0, 0
	for _, name := range names {
		s := p.stages[name]
		if slices.Contains(leftOut, name) {
			fmt.Fprintf(&b, "%-18s left out by name\n", name)
			continue
		}
		if s == nil || !s.tested && !s.failed {
			fmt.Fprintf(&b, "%-18s did not run: something before it failed\n", name)
			continue
		}
		result := outcome(s.failed)
		if !s.failed && !s.ended && len(planned) > 0 {
			result = "incomplete" // After a failure, make runs no more commands of the other stages.
		}
		fmt.Fprintf(&b, "%-18s %-11s %8d %6d %8s\n", name, result, s.packages, s.tests, span(s.end.Sub(s.begin)))
		packages, tests = packages+s.packages, tests+s.tests
	}
	fmt.Fprintf(&b, "%-18s %-11s %8d %6d %8s\n", "all", result(len(p.failed), rc), packages, tests, span(time.Since(p.start)))
	io.WriteString(p.w, b.String())
}

// complete reports whether all stages have ended that are not left out. If make succeeds without one of them, the Makefile is wrong.
func (p *printer) complete(planned, leftOut []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(planned, func(name string) bool {
		s := p.stages[name]
		return !slices.Contains(leftOut, name) && (s == nil || !s.ended)
	})
}

func result(failures, rc int) string {
	if failures > 0 {
		return amount(failures, "failure")
	}
	return outcome(rc != 0)
}

func title(e Event) string {
	if e.Test != "" {
		return short(e.Item) + " " + e.Test
	}
	return short(e.Item)
}

// short returns the name of a package in this repository, or both ends of a command.
func short(item string) string {
	item = strings.Join(strings.Fields(strings.TrimPrefix(item, module)), " ")
	if len(item) > 50 {
		item = item[:15] + "..." + item[len(item)-32:]
	}
	return item
}

func span(d time.Duration) string {
	s := int(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func amount(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// last returns the last lines of a text.
func last(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	if len(lines) <= n {
		return text
	}
	return fmt.Sprintf("... (%s above)\n", amount(len(lines)-n, "line")) + strings.Join(lines[len(lines)-n:], "")
}
