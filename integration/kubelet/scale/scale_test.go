package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestQuick runs the benchmark, which checks itself, and checks the counts in its table.
func TestQuick(t *testing.T) {
	table := filepath.Join(t.TempDir(), "table.txt")
	out, err := exec.CommandContext(testkit.Context(t), testkit.Build(t, "."), "-quick", "-connecting", "-out", table).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	written, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(out, written) {
		t.Errorf("printed:\n%s\nwritten:\n%s", out, written)
	}
	for _, want := range []string{
		`(?m)^ +heartbeats alone +connecting +at once +in 1 s +4 pins in 1 s +at once, connecting$`,
		`(?m)^new ImagePins +– +– +1 +1 +4 +1$`,
		`(?m)^agents that created an ImagePin +– +– +1 +1 +4 +1$`,
		`(?m)^heartbeats +[1-9]\d* .*[1-9]\d*$`,
		`(?m)^oldest lease +[1-9].* m?s$`,
		`(?m)^stored ImagePins +200$`,
		`(?m)^etcd: bytes of each ImagePin +[1-9],\d{3}$`,
		`(?m)^another pod of a revision: image, CreateContainer .* (ok|missed)$`,
		`(?m)^first pod of a revision, new ImagePin: image, CreateContainer .* (ok|missed)$`,
	} {
		if !regexp.MustCompile(want).Match(written) {
			t.Errorf("the table does not match %s:\n%s", want, written)
		}
	}
	testkit.NothingLeft(t, string(out))
}

// TestInterrupted interrupts the benchmark after its first line, while it stores ImagePins.
func TestInterrupted(t *testing.T) {
	out, err := testkit.Interrupt(t, testkit.Build(t, "."), "", os.Interrupt)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the benchmark: got %v, want exit code 1\n%s", err, out)
	}
	if !strings.Contains(out, "cleaned up") || strings.Contains(out, "creating") {
		t.Errorf("the benchmark was not interrupted:\n%s", out)
	}
	testkit.NothingLeft(t, out)
}

// TestDocumentHasTheTable checks that docs/performance.md and docs/performance/ have the same table.
func TestDocumentHasTheTable(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	doc := filepath.Join(docs, "performance.md")
	before, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	pasted := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(pasted, before, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := measure.Paste(pasted, tableName, filepath.Join(docs, "performance", "cluster.txt")); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(pasted)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("docs/performance.md does not have the table of docs/performance/cluster.txt: run `make bench-cluster-docs`")
	}
}

func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		args  []string
		valid bool
	}{
		{nil, true},
		{[]string{"-quick"}, true},
		{[]string{"-agents", "200", "-out", "x"}, true},
		{[]string{"-agents", "9"}, false},
		{[]string{"-n", "0"}, false},
		{[]string{"-doc", "x"}, false},
		{[]string{"x"}, false},
	} {
		o, err := parse(tc.args)
		if (err == nil) != tc.valid {
			t.Errorf("%q: got %+v, %v", tc.args, o, err)
		}
	}
}

func TestSum(t *testing.T) {
	metrics := "# HELP m x\nm{a=\"1 2\"} 3\nm{a=\"2\"} 4e1\nm_total 100\nn 5\n"
	for name, want := range map[string]float64{"m": 43, "n": 5, "absent": 0} {
		if got, err := sum(strings.NewReader(metrics), name); err != nil || got != want {
			t.Errorf("sum of %s: got %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := sum(strings.NewReader("m x\n"), "m"); err == nil {
		t.Error("a sample that is not a number is not an error")
	}
}

// TestSchedules checks that each ImagePin of a scenario has agents, and that they claim within its time.
func TestSchedules(t *testing.T) {
	for _, z := range []sizes{fullSizes, quickSizes} {
		for _, s := range scenarios(z) {
			claims := map[int]int{}
			for i := range z.agents {
				pin, after := s.at(i)
				claims[pin]++
				if after < 0 || after > time.Minute {
					t.Errorf("%s: agent %d claims after %s", s.name, i, after)
				}
			}
			if len(claims) != s.pins {
				t.Errorf("%s: agents claim %d ImagePins, want %d", s.name, len(claims), s.pins)
			}
			for pin, n := range claims {
				if n != z.agents/s.pins {
					t.Errorf("%s: %d agents claim ImagePin %d, want %d", s.name, n, pin, z.agents/s.pins)
				}
			}
		}
	}
}

func TestParallel(t *testing.T) {
	done := make([]bool, 100)
	if err := parallel(t.Context(), len(done), func(_ context.Context, i int) error { done[i] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	for i, d := range done {
		if !d {
			t.Errorf("%d was not called", i)
		}
	}
	failure := errors.New("failure")
	if err := parallel(t.Context(), 100, func(_ context.Context, i int) error {
		if i == 50 {
			return failure
		}
		return nil
	}); !errors.Is(err, failure) {
		t.Errorf("got %v, want %v", err, failure)
	}
}
