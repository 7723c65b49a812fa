package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/imagepin/imagepin/integration/registry"
)

// layers is the number of layers of the image.
const layers = 2

// cost counts the registry requests of a part of the demo.
type cost struct {
	what      string
	resolves  int // HEADs of a tag
	manifests int // GETs of indexes and manifests
	blobs     int // GETs of configs and layers
	other     int
}

// count ends a part. The requests since the previous part are its cost.
func (d *demo) count(what string) {
	c := cost{what: what}
	for _, q := range d.reg.Requests() {
		if q.Seq <= d.seen {
			continue
		}
		d.seen = q.Seq
		switch {
		case q.Kind == registry.Manifest && q.Method == "HEAD":
			c.resolves++
		case q.Kind == registry.Manifest:
			c.manifests++
		case q.Kind == registry.Blob:
			c.blobs++
		default:
			c.other++
		}
	}
	d.costs = append(d.costs, c)
}

// requests is the last step.
func (d *demo) requests(context.Context) error {
	d.count("crash and later steps")
	t := table{header: []string{"", "HEAD OF A TAG", "INDEXES, MANIFESTS", "CONFIGS, LAYERS", "OTHER"}}
	for _, c := range d.costs {
		t.rows = append(t.rows, []string{c.what, strconv.Itoa(c.resolves), strconv.Itoa(c.manifests), strconv.Itoa(c.blobs), strconv.Itoa(c.other)})
	}
	t.print(d.out)
	d.checkSecond(d.costs[1])
	again := d.costs[len(d.handlers)]
	d.claim(again == cost{what: again.what, resolves: len(d.handlers)}, nil, "requests",
		"repeated pulls sent requests other than one HEAD each: %+v", again)
	if d.noPods == nil {
		i := slices.IndexFunc(d.costs, func(c cost) bool { return c.what == pinnedPods })
		d.claim(d.costs[i] == cost{what: pinnedPods}, nil, "requests", "pods of pinned revisions sent requests: %+v", d.costs[i])
	}
	return nil
}

// checkSecond checks that the pull for the second snapshotter fetched only the layers, which the first had discarded.
func (d *demo) checkSecond(c cost) {
	first, second := d.handlers[0], d.handlers[1]
	if c.blobs == 0 {
		d.say("   The pull for %s fetched no layers: it treated the image as present, but only %s has it.", second.name, first.snapshotter)
	} else {
		d.say("   The pull for %s fetched only the layers, which had been discarded. It shares the rest with %s.", second.name, first.name)
	}
	d.claim(c == cost{what: c.what, resolves: 1, blobs: layers}, second, "requests",
		"requests of the pull: want one HEAD and %d blobs, got %d HEADs, %d manifests, %d blobs", layers, c.resolves, c.manifests, c.blobs)
}
