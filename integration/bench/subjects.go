package main

import (
	"slices"
	"strings"
)

// summary are the rows that operators ask about.
var summary = []string{
	"cold pull, small image",
	"cold pull, 240 MB in 8 layers",
	"pull, then pod running, 240 MB in 8 layers",
	"second snapshotter, layers discarded",
	"warm pull, default",
	"warm pull, default: requests",
	"100 pulls of one image",
	"scale-up, 30 pods of 10 images",
	"boot, 110 pods of 40 images",
	"pod: CreateContainer",
	"ImageStatus, 1,000 images",
	"ListImages, 1,000 images",
	"restart until listed, 1,000 images",
	"first start on stock's root, 1,000 images",
	"memory (RSS), 1,000 images",
}

// subject is a part of the chart of all ratios: the rows whose names begin with one of some texts.
type subject struct {
	name     string
	prefixes []string
}

// subjects are the parts, in their order. A row belongs to the first one that has its name.
var subjects = []subject{
	{"Pulls of an image that the node does not have", []string{"cold pull", "pull, then pod running", "durable pull"}},
	{"Pulls of an image that the node has", []string{"warm pull", "second snapshotter", "new tag"}},
	{"Many pulls, and removal", []string{"100 pulls", "50 images", "RemoveImage", "memory (RSS) after", "live heap gained", "goroutines gained"}},
	{"Calls of a pod", []string{"pod: ", "ListContainers", "Version"}},
	{"Many pods at once", []string{"boot", "drain", "scale-up"}},
	{"Lists and status, by images on the node", []string{"ImageStatus", "ListImages", "StreamImages", "CPU a day"}},
	{"Starts, by images on the node", []string{"first start", "restart", "reconcile"}},
	{"Memory, by images on the node", []string{"memory", "live heap", "goroutines"}},
	{"imagepin serve", []string{"serve: "}},
	{"Locks and bundles", []string{"bundle", "apply", "lock"}},
}

// rows returns the bars of a subject.
func (s subject) rows(bars []ratioBar) []ratioBar {
	return slices.DeleteFunc(slices.Clone(bars), func(b ratioBar) bool {
		i := slices.IndexFunc(subjects, func(o subject) bool { return o.has(b.name) })
		return i < 0 || subjects[i].name != s.name
	})
}

func (s subject) has(name string) bool {
	return slices.ContainsFunc(s.prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// summarized returns the bars of the summary, in its order.
func summarized(bars []ratioBar) (some []ratioBar) {
	for _, name := range summary {
		if i := slices.IndexFunc(bars, func(b ratioBar) bool { return b.name == name }); i >= 0 {
			some = append(some, bars[i])
		}
	}
	return some
}
