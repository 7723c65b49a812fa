package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/script"
)

// tag is the image of the demo.
const tag = "app:stable"

// handler is a runtime handler of the node with its expected state.
type handler struct {
	name        string
	platform    string
	snapshotter string

	version   string          // version of the tag for this handler: v1 or v2; empty before the first pull
	runs      string          // version of its container
	container *node.Container // the latest one, or nil
	podErr    error           // why there is no container
	shown     bool            // podErr has been printed
}

// demo is one run.
type demo struct {
	out   io.Writer
	stock bool
	began time.Time

	handlers []*handler
	digests  map[string]v1.Hash // by version
	reg      *registry.Registry
	node     *node.Node
	noPods   error // why pods cannot run on this machine, or nil

	revisions []*revision // of the Deployment, the newest is the last one
	started   int         // pods that had to start

	step   int
	claims []claim
	costs  []cost
	seen   int // number of the last request that costs include
}

func newDemo(out io.Writer, stock bool) *demo {
	foreign := handler{name: "arm", platform: "linux/arm64", snapshotter: "overlayfs"}
	if foreign.platform == images.HostPlatform() {
		foreign.name, foreign.platform = "amd", "linux/amd64"
	}
	return &demo{
		out: out, stock: stock, began: time.Now(),
		handlers: []*handler{
			{name: node.DefaultHandler, platform: images.HostPlatform(), snapshotter: "overlayfs"},
			{name: "second", platform: images.HostPlatform(), snapshotter: "native"},
			&foreign,
		},
		digests: map[string]v1.Hash{},
	}
}

// run runs the steps. It always cleans up.
func (d *demo) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	steps := []struct {
		heading string
		do      func(context.Context) error
	}{
		{"Start a registry and a containerd with three runtime handlers", d.start},
		{"Pull one tag, once for each handler", d.pull},
		{"Run a pod for each handler", d.pods},
		{"Move the tag to v2 in the registry, then pull it for one handler only", d.moveTag},
		{"Run a pod of the revision that runs v1, and a pod of a new revision", d.pin},
		{"Kill containerd with SIGKILL, stop the registry, start containerd again", d.crash},
		{"Requests to the registry", d.requests},
	}
	for _, s := range steps {
		d.step++
		d.say("\n%d. %s\n", d.step, s.heading)
		err := s.do(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", d.step, err)
		}
	}
	return d.conclude()
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

// name returns the name of the containerd of this run.
func (d *demo) name() string {
	if d.stock {
		return "stock containerd"
	}
	return "containerd with imagepin"
}

// took returns how long the demo has been running.
func (d *demo) took() time.Duration { return time.Since(d.began).Round(100 * time.Millisecond) }

// ref returns the full reference of the tag.
func (d *demo) ref() string { return d.reg.Ref(tag) }

// say prints a paragraph.
func (d *demo) say(format string, args ...any) { script.Say(d.out, format, args...) }
