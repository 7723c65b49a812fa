package results

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseGo(t *testing.T) {
	got, err := ParseGo(`=== RUN   TestA
    a_test.go:1: text--- PASS: TestA (0.01s)
=== RUN   TestB
=== RUN   TestB/one
=== RUN   TestB/two
--- FAIL: TestB (1.20s)
    --- PASS: TestB/one (0.00s)
    --- FAIL: TestB/two (1.10s)
=== RUN   TestC
=== RUN   TestC/one
--- FAIL: TestC (0.00s)
    --- SKIP: TestC/one (0.00s)
=== RUN   TestD
=== RUN   TestD/one
--- PASS: TestD (0.00s)
    --- PASS: TestD/one (0.00s)
FAIL
`)
	want := Outcomes{"TestA": Passed, "TestB/one": Passed, "TestB/two": Failed, "TestC": Failed, "TestC/one": Skipped, "TestD/one": Passed}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, output := range []string{"", "=== RUN   TestA\npanic: no\n", "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n"} {
		if got, err := ParseGo(output); err == nil {
			t.Errorf("ParseGo(%q): got %v, want an error", output, got)
		}
	}
}

func TestParseJUnit(t *testing.T) {
	got, err := ParseJUnit([]byte(`<?xml version="1.0"?><testsuites><testsuite name="CRI">
<testcase name="[BeforeSuite]" status="passed"></testcase>
<testcase name="[It] pulls an image" status="passed"></testcase>
<testcase name="[It] has AppArmor" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[It] is slow" status="pending"></testcase>
<testcase name="[It] panics" status="panicked"></testcase>
</testsuite></testsuites>`))
	want := Outcomes{"pulls an image": Passed, "has AppArmor": Skipped, "is slow": Skipped, "panics": Failed}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, report := range []string{"", "<testsuites></testsuites>", "no XML <"} {
		if got, err := ParseJUnit([]byte(report)); err == nil {
			t.Errorf("ParseJUnit(%q): got %v, want an error", report, got)
		}
	}
}

func TestCheck(t *testing.T) {
	stock := Outcomes{"A": Passed, "B": Passed, "C": Failed, "D": Passed, "E": Passed, "F": Skipped, "G": Skipped}
	ours := Outcomes{"A": Passed, "B": Failed, "C": Failed, "D": Skipped, "F": Skipped, "G": Failed}
	differences := Differences(stock, ours)
	if want := []string{"B", "D", "E", "G"}; !slices.Equal(differences, want) {
		t.Errorf("got the differences %q, want %q", differences, want)
	}
	accepted, err := ParseList("# a comment\n\ncri\tserve\tB\twhy\ncri\tserve\tA\twhy\ncri\tserve\tnot run\twhy\ncri\tplugin\tD\twhy\nclient\tserve\tD\twhy\n")
	if err != nil {
		t.Fatal(err)
	}
	unlisted, stale := Check("cri", "serve", differences, stock, accepted)
	if !slices.Equal(unlisted, []string{"D", "E", "G"}) || !slices.Equal(stale, []string{"A"}) {
		t.Errorf("got unlisted %q and stale %q, want D, E, G and A", unlisted, stale)
	}
	for _, list := range []string{"cri\tserve\tB\n", "cri serve B why\n", "cri\tserve\t\twhy\n"} {
		if got, err := ParseList(list); err == nil {
			t.Errorf("ParseList(%q): got %v, want an error", list, got)
		}
	}
}

func TestFile(t *testing.T) {
	runs := []Run{
		{"cri", "serve", Outcomes{"B": Failed, "A with spaces": Passed}},
		{"cri", "stock", Outcomes{"A with spaces": Passed, "B": Skipped}},
	}
	got, err := Parse(Format(runs))
	if err != nil || !reflect.DeepEqual(got, runs) {
		t.Errorf("got %v, %v, want %v", got, err, runs)
	}
	if got, err := Parse([]byte("half\tof a line\n")); err == nil || !strings.Contains(err.Error(), "half") {
		t.Errorf("got %v, %v from an incomplete line, want an error that has it", got, err)
	}
}
