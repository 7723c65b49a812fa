// Package results has the outcomes of the tests of peers: it reads them, compares those with imagepin and with stock containerd,
// and formats their table in RELEASES.md.
package results

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Outcome is the outcome of a test.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Outcomes are the outcomes of a suite by the name of the test.
type Outcomes map[string]Outcome

var (
	started = regexp.MustCompile(`=== RUN   (\S+)`)
	ended   = regexp.MustCompile(`--- (PASS|FAIL|SKIP): (\S+) \([0-9.]+s\)`)
)

// ParseGo reads the verbose output of a Go test. A test with subtests has an outcome of its own only if it fails and none of its
// subtests does. It returns an error if a test has not ended.
func ParseGo(output string) (Outcomes, error) {
	all := Outcomes{}
	for _, m := range ended.FindAllStringSubmatch(output, -1) {
		all[m[2]] = map[string]Outcome{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}[m[1]]
	}
	var open []string
	for _, m := range started.FindAllStringSubmatch(output, -1) {
		if _, ok := all[m[1]]; !ok {
			open = append(open, m[1])
		}
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("tests have not ended: %s", strings.Join(open, ", "))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no test has run")
	}
	own := Outcomes{}
	for name, outcome := range all {
		parent, failedBelow := false, false
		for other, o := range all {
			if strings.HasPrefix(other, name+"/") {
				parent = true
				failedBelow = failedBelow || o == Failed
			}
		}
		if !parent || outcome == Failed && !failedBelow {
			own[name] = outcome
		}
	}
	return own, nil
}

// ParseJUnit reads the JUnit report of critest.
func ParseJUnit(report []byte) (Outcomes, error) {
	var doc struct {
		Suites []struct {
			Cases []struct {
				Name   string `xml:"name,attr"`
				Status string `xml:"status,attr"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(report, &doc); err != nil {
		return nil, fmt.Errorf("report of critest: %w", err)
	}
	all := Outcomes{}
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			if !isTest {
				continue
			}
			switch c.Status {
			case "passed":
				all[name] = Passed
			case "skipped", "pending":
				all[name] = Skipped
			default:
				all[name] = Failed
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("report of critest: no test has run")
	}
	return all, nil
}

// Names returns the sorted names of the tests with an outcome.
func (o Outcomes) Names(outcome Outcome) []string {
	var names []string
	for name, got := range o {
		if got == outcome {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Differences returns the sorted names of the tests with a worse outcome with imagepin than with stock containerd: those that pass with
// stock containerd only, and those that fail and are skipped with stock containerd.
func Differences(stock, ours Outcomes) []string {
	var names []string
	for name, outcome := range stock {
		if outcome == Passed && ours[name] != Passed || outcome == Skipped && ours[name] == Failed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
