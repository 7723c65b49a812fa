// Command pictures writes the pictures of docs/pictures from real runs: it runs the demo on both containerds, records
// what they print, and draws what the recordings say. The flowcharts need no run.
//
// With -draw, it draws the pictures of the recordings that exist.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

// recordings are the runs of the demo, by the name of their file.
var recordings = []struct {
	name, title string
	args        []string
}{
	{"demo", "make demo", nil},
	{"demo-stock", "make demo-stock", []string{"-stock"}},
}

func main() {
	dir := flag.String("out", "../docs/pictures", "directory of the pictures")
	demo := flag.String("demo", "../bin/demo", "the compiled demo")
	draw := flag.Bool("draw", false, "draw the recordings that exist, without running the demo")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := write(ctx, *dir, *demo, *draw); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, dir, demo string, drawOnly bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if !drawOnly {
		for _, r := range recordings {
			c, err := record(ctx, r.title, demo, r.args...)
			if err != nil {
				return fmt.Errorf("%s: %w", r.title, err)
			}
			if err := os.WriteFile(filepath.Join(dir, r.name+".cast"), c.bytes(), 0o644); err != nil {
				return err
			}
		}
	}
	pictures, err := drawAll(dir)
	if err != nil {
		return err
	}
	for name, svg := range pictures {
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// drawAll returns the pictures of the recordings in a directory, by file name.
func drawAll(dir string) (map[string][]byte, error) {
	pictures := map[string][]byte{
		"digest-policy.svg": drawFlow("Which digest a container runs", digestPolicy),
		"what-decides.svg":  drawFlow("What decides the digest of a reference, in which order", whatDecides),
	}
	var runs []*run
	for _, r := range recordings {
		b, err := os.ReadFile(filepath.Join(dir, r.name+".cast"))
		if err != nil {
			return nil, err
		}
		c, err := readCast(b)
		if err != nil {
			return nil, fmt.Errorf("%s.cast: %w", r.name, err)
		}
		pictures[r.name+".svg"] = drawTerminal(c)
		parsed, err := parseRun(c.text())
		if err != nil {
			return nil, fmt.Errorf("%s.cast: %w", r.name, err)
		}
		runs = append(runs, parsed)
	}
	oneTag, err := drawOneTag(runs[1], runs[0])
	if err != nil {
		return nil, err
	}
	pictures["one-tag.svg"] = oneTag
	return pictures, nil
}
