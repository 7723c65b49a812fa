package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
)

// parser makes events of the output of go test -json.
type parser struct {
	stage   string
	verbose bool
	send    func(Event)

	packages map[string]*pkg
	builds   map[string]*strings.Builder // compile errors by the package that does not compile
	failed   bool                        // a package has failed
}

// pkg is a package whose tests run.
type pkg struct {
	tests   map[string]*test
	order   []*test
	output  []line // of all tests that have not passed, and of the package itself
	count   int
	failed  int
	skipped []Skip
	cached  bool
}

type test struct {
	name   string
	result string // pass, fail or skip; empty as long as it runs
	shown  bool
}

type line struct {
	test *test // nil is the package
	text string
}

// testEvent is an event of go test -json. See go doc test2json, and go help buildjson for those of the compiler.
type testEvent struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64
}

func newParser(stage string, verbose bool, send func(Event)) *parser {
	return &parser{stage: stage, verbose: verbose, send: send, packages: map[string]*pkg{}, builds: map[string]*strings.Builder{}}
}

// read parses all of the output, and returns the lines that are not JSON. At the end of the output, packages that have not
// ended have failed: go test was killed.
func (p *parser) read(r io.Reader) (string, error) {
	var rest strings.Builder
	b := bufio.NewReader(r)
	for {
		text, err := b.ReadString('\n')
		var e testEvent
		if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &e) == nil && e.Action != "" {
			p.event(e)
		} else {
			rest.WriteString(text)
		}
		if err != nil {
			for _, name := range sorted(p.packages) {
				p.end(name, testEvent{Action: "fail", Package: name})
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return rest.String(), err
		}
	}
}

func (p *parser) event(e testEvent) {
	if e.Action == "build-output" {
		if p.builds[e.ImportPath] == nil {
			p.builds[e.ImportPath] = &strings.Builder{}
		}
		p.builds[e.ImportPath].WriteString(e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	k := p.packages[e.Package]
	if k == nil {
		k = &pkg{tests: map[string]*test{}}
		p.packages[e.Package] = k
		p.send(Event{Kind: ItemBegins, Stage: p.stage, Item: e.Package})
	}
	t := k.test(e.Test)
	switch e.Action {
	case "run":
		k.count++
	case "bench":
		if k.count++; t != nil {
			t.result = "pass"
		}
	case "output":
		k.add(t, e.Output)
	case "pass", "fail", "skip":
		if t == nil {
			p.end(e.Package, e)
			return
		}
		t.result = e.Action
		switch e.Action {
		case "skip":
			k.skipped = append(k.skipped, Skip{Test: e.Test, Reason: reason(k.text(func(l line) bool { return l.test == t }))})
		case "fail":
			if k.failed++; !strings.Contains(e.Test, "/") {
				p.failure(e.Package, e.Test, k.show(e.Test))
			}
		}
		if e.Action != "fail" && !p.verbose {
			k.output = slices.DeleteFunc(k.output, func(l line) bool { return l.test == t })
		}
	}
}

// end is called once for each package.
func (p *parser) end(name string, e testEvent) {
	k := p.packages[name]
	delete(p.packages, name)
	end := Event{
		Kind: ItemEnds, Stage: p.stage, Item: name, Failed: e.Action == "fail", Empty: e.Action == "skip", Cached: k.cached,
		Tests: k.count, Seconds: e.Elapsed, Skipped: k.skipped,
	}
	if end.Failed {
		p.failed = true
		var out strings.Builder
		if b := p.builds[e.FailedBuild]; b != nil {
			out.WriteString(b.String())
			delete(p.builds, e.FailedBuild)
		}
		// What no failed test has shown: tests that have not ended, and the output of the package.
		unended := false
		for _, t := range k.order {
			if t.result == "" && !t.shown && !strings.Contains(t.name, "/") {
				out.WriteString(k.show(t.name))
				unended = true
			}
		}
		own := k.text(func(l line) bool { return l.test == nil || !l.test.shown && l.test.result == "fail" })
		out.WriteString(own)
		if !strings.Contains(own, "FAIL\t"+name) {
			out.WriteString("FAIL\t" + name + "\n")
		}
		if k.failed > 0 && !unended && out.String() == own {
			end.Output = own
		} else {
			p.failure(name, "", out.String())
		}
	} else if p.verbose {
		end.Output = k.text(func(line) bool { return true })
	}
	p.send(end)
}

func (p *parser) failure(pkg, test, output string) {
	p.send(Event{Kind: Failure, Stage: p.stage, Item: pkg, Test: test, Output: output})
}

// rest returns the compile errors of packages that no failed test needs.
func (p *parser) rest() string {
	var out strings.Builder
	for _, name := range sorted(p.builds) {
		out.WriteString(p.builds[name].String())
	}
	return out.String()
}

func (k *pkg) test(name string) *test {
	if name == "" {
		return nil
	}
	t := k.tests[name]
	if t == nil {
		t = &test{name: name}
		k.tests[name] = t
		k.order = append(k.order, t)
	}
	return t
}

// framing is what tests print without -json only with -v.
var framing = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME)\s|--- (PASS|SKIP): |PASS\n|ok  \t)`)

func (k *pkg) add(t *test, text string) {
	if t == nil && strings.HasPrefix(text, "ok  \t") && strings.Contains(text, "\t(cached)") {
		k.cached = true
	}
	if framing.MatchString(text) && !(t != nil && strings.Contains(text, "--- SKIP")) {
		return
	}
	k.output = append(k.output, line{t, text})
}

// show returns the output of a test and of its subtests that have not passed.
func (k *pkg) show(name string) string {
	in := func(t *test) bool { return t != nil && (t.name == name || strings.HasPrefix(t.name, name+"/")) }
	for _, t := range k.order {
		t.shown = t.shown || in(t)
	}
	// Subtests that run at the same time print in turns. The output of each is in one piece.
	var out strings.Builder
	for _, t := range k.order {
		if in(t) && (t.result == "fail" || t.result == "") {
			out.WriteString(k.text(func(l line) bool { return l.test == t }))
		}
	}
	return out.String()
}

func (k *pkg) text(which func(line) bool) string {
	var out strings.Builder
	for _, l := range k.output {
		if which(l) {
			out.WriteString(l.text)
		}
	}
	return out.String()
}

var position = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// reason returns what a skipped test has printed.
func reason(output string) string {
	var out []string
	for l := range strings.Lines(output) {
		if l = strings.TrimSpace(position.ReplaceAllString(l, "")); l != "" && !strings.HasPrefix(l, "--- SKIP") {
			out = append(out, l)
		}
	}
	return strings.Join(out, " ")
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
