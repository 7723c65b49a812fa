package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/script"
)

// demo is one run.
type demo struct {
	out   io.Writer
	began time.Time

	reg   *registry.Registry
	node  *node.Node
	shell transcript.Shell
}

func newDemo(out io.Writer) *demo { return &demo{out: out, began: time.Now()} }

// run runs the steps. It always cleans up.
func (d *demo) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	steps := []struct {
		heading string
		do      func(context.Context) error
	}{
		{"Where there is a registry: lock the images of the manifests, and write bundles", d.bundle},
		{"A new node, without a registry, boots with the bundle in its drop directory", d.boot},
		{"Update: the node loses power while it applies the second bundle", d.losePower},
		{"The power returns: the node has the lock that it had, and pods start", d.powerReturns},
		{"Apply the second bundle again", d.update},
		{"Go back to the lock before, and reboot", d.rollback},
	}
	for i, s := range steps {
		d.say("\n%d. %s\n", i+1, s.heading)
		err := s.do(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	d.say("Result after %s: at each boot, the pods ran one lock, without a registry.", time.Since(d.began).Round(100*time.Millisecond))
	return nil
}

// close stops everything that the demo started. It can be called at any time.
func (d *demo) close() error {
	var err error
	if d.node != nil {
		err = d.node.Close()
	}
	if d.reg != nil {
		d.reg.Close()
	}
	if err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	d.say("\nCleaned up: no process, mount or file is left.")
	return nil
}

// say prints a paragraph.
func (d *demo) say(format string, args ...any) { script.Say(d.out, format, args...) }
