package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// run is what a run of the demo has printed.
type run struct {
	containerd string // for example v2.4.2 (stock containerd)
	handlers   []handler
	moved      [2]string // the digests of the tag before and after it moved, with the version
	tables     []table
	replicas   map[int][]replica // the pods of a Deployment, by step
	why        string            // why two builds of the tag are right, with imagepin
	notes      []string          // the errors, one for each pod that did not start
	containers string            // how many containers run at the end
	result     string
}

// handler is a runtime handler as it is configured.
type handler struct{ name, platform, snapshotter string }

// table is a table of the handlers. Its heading is the paragraph above it, or that of the step.
type table struct {
	step    int
	heading string
	rows    []row
}

// row is what the node has for a handler. wrong has the names of the columns that do not have the expected value.
type row struct {
	handler, platform, snapshotter, digest, imageID, output string
	wrong                                                   map[string]bool
}

// replica is a pod of a revision. It is wrong if it is another build than that of the revision.
type replica struct {
	revision, pod, pin, output string
	wrong                      bool
}

var (
	replicaLine    = regexp.MustCompile(`^   (\d+) +(\d+) +(none|\w+ \(\w+\)) +(\S.*?)( !)?$`)
	stepLine       = regexp.MustCompile(`^(\d+)\. (.*)$`)
	handlerLine    = regexp.MustCompile(`^   handler +(\S+) +platform (\S+) +snapshotter (\S+)$`)
	containerdLine = regexp.MustCompile(`^   containerd +(\S+ \(.*?\)),`)
	movedLine      = regexp.MustCompile(`moved from (\S+ \(\S+\)) to (\S+ \(\S+\))\.$`)
	noteLine       = regexp.MustCompile(`^   \[\d+\] (.*)$`)
	countLine      = regexp.MustCompile(`^   (\d+) containers run on the node`)
)

// parseRun reads the output of the demo.
func parseRun(text string) (*run, error) {
	r := &run{replicas: map[int][]replica{}}
	var step int
	var heading string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch {
		case stepLine.MatchString(line):
			step++
			heading = stepLine.FindStringSubmatch(line)[2]
		case handlerLine.MatchString(line):
			m := handlerLine.FindStringSubmatch(line)
			r.handlers = append(r.handlers, handler{m[1], m[2], m[3]})
		case containerdLine.MatchString(line):
			r.containerd = containerdLine.FindStringSubmatch(line)[1]
		case movedLine.MatchString(line):
			m := movedLine.FindStringSubmatch(line)
			r.moved = [2]string{m[1], m[2]}
		case countLine.MatchString(line):
			r.containers = countLine.FindStringSubmatch(line)[1]
		case strings.HasPrefix(line, "Result after"):
			r.result = line
		case strings.HasPrefix(line, "   The node") || strings.HasPrefix(line, "   The restarted node"):
			heading = strings.TrimSpace(line)
		case strings.HasPrefix(line, "   HANDLER "):
			end := i + 1
			for end < len(lines) && end-i <= len(r.handlers) {
				end++
			}
			rows, err := parseTable(line, lines[i+1:end])
			if err != nil {
				return nil, err
			}
			r.tables = append(r.tables, table{step, heading, rows})
			i = end - 1
		case replicaLine.MatchString(line):
			m := replicaLine.FindStringSubmatch(line)
			r.replicas[step] = append(r.replicas[step], replica{m[1], m[2], m[3], m[4], m[5] != ""})
		case strings.HasPrefix(line, "   Two builds are right"):
			r.why = strings.TrimSpace(line)
			for i+1 < len(lines) && lines[i+1] != "" {
				i++
				r.why += " " + strings.TrimSpace(lines[i])
			}
		case noteLine.MatchString(line):
			note := noteLine.FindStringSubmatch(line)[1]
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "       ") {
				i++
				note += " " + strings.TrimSpace(lines[i])
			}
			r.notes = append(r.notes, note)
		}
	}
	if r.containerd == "" || len(r.handlers) == 0 || len(r.tables) == 0 || r.moved[0] == "" || len(r.replicas) == 0 || r.result == "" {
		return nil, errors.New("this is not the output of a whole demo")
	}
	return r, nil
}

// parseTable reads a table, whose columns begin where their names begin.
func parseTable(head string, lines []string) ([]row, error) {
	var starts []int
	for _, name := range []string{"HANDLER", "PLATFORM", "SNAPSHOTTER", "REGISTRY DIGEST", "IMAGE ID", "CONTAINER OUTPUT"} {
		if at := strings.Index(head, name); at >= 0 {
			starts = append(starts, at)
		}
	}
	var out []row
	for _, line := range lines {
		r := row{wrong: map[string]bool{}}
		fields := []*string{&r.handler, &r.platform, &r.snapshotter, &r.digest, &r.imageID, &r.output}
		names := []string{"handler", "platform", "snapshotter", "digest", "image ID", "output"}
		for i, start := range starts {
			end := len(line)
			if i+1 < len(starts) {
				end = min(end, starts[i+1])
			}
			if start > end {
				return nil, fmt.Errorf("the row %q does not have the columns of %q", line, head)
			}
			text, wrong := strings.CutSuffix(strings.TrimSpace(line[start:end]), " !")
			*fields[i] = text
			r.wrong[names[i]] = wrong
		}
		out = append(out, r)
	}
	return out, nil
}

// table returns the last table of a step whose heading begins with a text.
func (r *run) table(step int, heading string) (table, error) {
	for i := len(r.tables) - 1; i >= 0; i-- {
		if t := r.tables[i]; t.step == step && strings.HasPrefix(t.heading, heading) {
			return t, nil
		}
	}
	return table{}, fmt.Errorf("the run has no table in step %d %s", step, cmp.Or(heading, "at all"))
}
