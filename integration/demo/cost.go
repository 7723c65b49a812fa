package main

import (
	"context"
	"strconv"

	"github.com/imagepin/imagepin/integration/registry"
)

// layers is how many layers the image has.
const layers = 2

// cost is what a part of the demo asked of the registry.
type cost struct {
	what      string
	resolves  int // HEAD of a tag
	manifests int // indexes and manifests fetched
	blobs     int // configs and layers fetched
	other     int
}

// count ends a part: the requests since the last one are its cost.
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
	d.count("crash and all after it")
	t := table{header: []string{"", "HEAD OF A TAG", "INDEXES, MANIFESTS", "CONFIGS, LAYERS", "OTHER"}}
	for _, c := range d.costs {
		t.rows = append(t.rows, []string{c.what, strconv.Itoa(c.resolves), strconv.Itoa(c.manifests), strconv.Itoa(c.blobs), strconv.Itoa(c.other)})
	}
	t.print(d.out)
	d.checkSecond(d.costs[1])
	again := d.costs[len(d.handlers)]
	d.claim(again == cost{what: again.what, resolves: len(d.handlers)}, nil, "requests",
		"pulls of what is there did not only ask what the tag is: %+v", again)
	return nil
}

// checkSecond checks that the second snapshotter shares with the first all that is left, and lacks nothing.
func (d *demo) checkSecond(c cost) {
	first, second := d.handlers[0], d.handlers[1]
	if c.blobs == 0 {
		d.say("   The pull for %s fetched no layers: the image was taken for present, which it was in %s only.", second.name, first.snapshotter)
	} else {
		d.say("   The pull for %s fetched the layers alone, as they had been discarded; it shares the rest with %s.", second.name, first.name)
	}
	d.claim(c == cost{what: c.what, resolves: 1, blobs: layers}, second, "requests",
		"its pull did not fetch just the %d discarded layers: %d HEADs, %d manifests, %d blobs", layers, c.resolves, c.manifests, c.blobs)
}
