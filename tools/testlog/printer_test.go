package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlow: what takes longer than a second has a line when it begins, and a command one when it ends.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newPrinter(&out)
		for _, c := range []struct {
			name  string
			takes time.Duration
		}{{"fast", time.Millisecond}, {"slow", 65 * time.Second}} {
			for _, command := range []bool{true, false} {
				item := fmt.Sprintf("%s-%t", c.name, command)
				p.handle(Event{Kind: ItemBegins, Stage: "s", Item: item})
				time.Sleep(c.takes)
				p.handle(Event{Kind: ItemEnds, Stage: "s", Item: item, Command: command, Seconds: c.takes.Seconds()})
			}
		}
		want(t, out.String(), `  0:01  s +begins  slow-true`, `  1:05  s +ok      slow-true +65.0 s`, `  1:06  s +begins  slow-false`, "ok  \tslow-false\t65.000s\t0 tests in s at 2:10",
			"ok  \tfast-false\t.*")
		without(t, out.String(), "fast-true", "begins  fast")
	})
}

// TestLongFailure: the end repeats only the last lines.
func TestLongFailure(t *testing.T) {
	var out bytes.Buffer
	p := newPrinter(&out)
	p.handle(Event{Kind: Failure, Stage: "s", Item: module + "a", Test: "TestA", Output: strings.Repeat("line\n", repeated+5) + "--- FAIL: TestA (0.00s)\n"})
	p.summary([]string{"s"}, nil, 1)
	want(t, out.String(), `  0:00  s +FAILED  a TestA`, `\.\.\. \(6 lines above\)`)
	if n := strings.Count(out.String(), "--- FAIL: TestA "); n != 2 {
		t.Errorf("the result is printed %d times", n)
	}
	if n := strings.Count(out.String(), "line\n"); n != repeated+5+repeated-1 {
		t.Errorf("%d lines are printed", n)
	}
}

// TestSummary has each result of a stage.
func TestSummary(t *testing.T) {
	var out bytes.Buffer
	p := newPrinter(&out)
	for _, name := range []string{"good", "bad", "beside"} {
		p.handle(Event{Kind: StageBegins, Stage: name})
		p.handle(Event{Kind: ItemEnds, Stage: name, Item: "a", Tests: 2, Failed: name == "bad"})
	}
	p.handle(Event{Kind: StageEnds, Stage: "good"})
	p.handle(Event{Kind: ItemEnds, Stage: "build", Item: "go build", Command: true, Failed: true})
	p.summary([]string{"good", "bad", "beside", "after", "never"}, []string{"never"}, 2)
	want(t, out.String(), "good +ok +1 +2 +0:00", "bad +FAILED +1 +2 +0:00", "beside +incomplete +1 +2 +0:00", "after +did not run: something before it failed",
		"never +left out by name", "build +FAILED +0 +0 +0:00", "all +FAILED +3 +6 +0:00")
}
