package peers

import (
	"cmp"
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/peers/results"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(inside())
	}
	testkit.Main(m)
}

var (
	//go:embed differences.txt
	differencesText string
	//go:embed leftout.txt
	leftOutText string
)

// TestPeers runs each suite with stock containerd and with imagepin. No test has a worse outcome with imagepin, unless differences.txt
// has it. IMAGEPIN_PEERS selects suites by name, or the tests about images that are enough for each change:
// "image". The outcomes of all suites are written to peers.tsv in the directory of the binaries, and the output of each suite to
// a directory below peers-output.
func TestPeers(t *testing.T) {
	accepted, err := results.ParseList(differencesText)
	if err != nil {
		t.Fatal(err)
	}
	leftOut, err := results.ParseList(leftOutText)
	if err != nil {
		t.Fatal(err)
	}
	selected := os.Getenv("IMAGEPIN_PEERS")
	var jobs []*outcome
	t.Run("suites", func(t *testing.T) {
		for _, s := range suites {
			pattern := s.tests
			switch selected {
			case "", "all", s.name:
			case "image":
				if pattern = s.image; pattern == "" {
					continue
				}
			default:
				continue
			}
			for _, w := range s.with {
				o := &outcome{suite: s.name, with: w}
				jobs = append(jobs, o)
				j := job{Suite: s.name, With: w, Run: pattern, Skip: skipped(leftOut, s.name), Bin: node.BinDir()}
				t.Run(s.name+" "+string(w), func(t *testing.T) {
					t.Parallel()
					o.tests = run(t, s, j)
				})
			}
		}
	})
	if len(jobs) == 0 {
		t.Fatalf("IMAGEPIN_PEERS=%s selects no suite", selected)
	}
	var runs []results.Run
	for _, o := range jobs {
		if o.tests == nil {
			return // it has failed
		}
		runs = append(runs, results.Run{Suite: o.suite, With: string(o.with), Outcomes: o.tests})
	}
	if selected == "" || selected == "all" {
		if err := os.WriteFile(filepath.Join(node.BinDir(), "peers.tsv"), results.Format(runs), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range runs {
		stock := stockOf(runs, r.Suite)
		if r.With == string(withStock) {
			t.Logf("%s, stock containerd: %d tests pass, %d are skipped. These fail: %q", r.Suite,
				len(stock.Names(results.Passed)), len(stock.Names(results.Skipped)), stock.Names(results.Failed))
			continue
		}
		differences := results.Differences(stock, r.Outcomes)
		t.Logf("%s, %s: %d tests pass. Worse than with stock containerd: %q", r.Suite, r.With, len(r.Outcomes.Names(results.Passed)), differences)
		unlisted, stale := results.Check(r.Suite, r.With, differences, stock, accepted)
		for _, name := range unlisted {
			t.Errorf("%s: %s is %s with stock containerd and %s with %s: see %s", r.Suite, name, stock[name], cmp.Or(r.Outcomes[name], "missing"), r.With,
				outputDir(r.Suite, r.With))
		}
		for _, name := range stale {
			t.Errorf("differences.txt has %s of %s with %s, which is not worse than with stock containerd any more: remove it", name, r.Suite, r.With)
		}
	}
}

// outcome is what a job resulted in.
type outcome struct {
	suite string
	with  with
	tests results.Outcomes
}

func stockOf(runs []results.Run, suite string) results.Outcomes {
	for _, r := range runs {
		if r.Suite == suite && r.With == string(withStock) {
			return r.Outcomes
		}
	}
	return nil
}

func outputDir(suite, with string) string {
	return filepath.Join(node.BinDir(), "peers-output", suite+"-"+with)
}

// run runs a job and returns the outcomes of its tests.
func run(t *testing.T, s suite, j job) results.Outcomes {
	dir := outputDir(s.name, string(j.With))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := start(testkit.Context(t), j, dir); err != nil {
		t.Fatal(err)
	}
	tests, err := s.outcomes(dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return tests
}

// skipped returns the pattern of the tests of a suite that do not run.
func skipped(leftOut []results.Entry, suite string) string {
	var patterns []string
	for _, e := range leftOut {
		if e.Suite == suite {
			patterns = append(patterns, e.Test)
		}
	}
	return strings.Join(patterns, "|")
}
