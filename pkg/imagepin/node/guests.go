package node

import (
	"fmt"
	"slices"
	"strings"
)

// forGuests returns the snapshotters that get no files, because the guests of all their runtime handlers pull images themselves. A
// snapshotter that may fetch layers lazily decides that itself, as nydus does.
//
// Snapshots are identified by chain ID alone. So if other handlers have a snapshotter too, images are unpacked in it for all. unpacked
// says so, for each of these snapshotters.
func (a *active) forGuests() (only map[string]bool, unpacked []string) {
	only = make(map[string]bool)
	for _, name := range a.runtimes.Snapshotters() {
		guests, others := a.handlersOf(name)
		switch {
		case len(guests) == 0 || a.Snapshotters[name].mayFetch(name, !a.CRI.Images.DisableSnapshotAnnotations):
		case len(others) == 0:
			only[name] = true
		default:
			unpacked = append(unpacked, fmt.Sprintf("images for runtime handlers with guest_pull (%s) are also unpacked on the node, because other handlers (%s) "+
				"have the same snapshotter, %s: give them one of their own", strings.Join(guests, ", "), strings.Join(others, ", "), name))
		}
	}
	return only, unpacked
}

// handlersOf returns the runtime handlers of a snapshotter: those whose guests pull images themselves, and others.
func (a *active) handlersOf(snapshotter string) (guests, others []string) {
	for _, t := range a.runtimes.Targets() {
		if t.Snapshotter != snapshotter {
			continue
		}
		for _, handler := range a.runtimes.Handlers(t) {
			if a.Settings.GuestPull[handler] {
				guests = append(guests, handler)
			} else {
				others = append(others, handler)
			}
		}
	}
	return guests, others
}

// isForGuests reports whether a snapshotter is one of [active.forGuests], or one that no runtime handler has: its images run nowhere.
func (n *Node) isForGuests(snapshotter string) bool {
	a := n.active.Load()
	return a.guests[snapshotter] || !slices.Contains(a.runtimes.Snapshotters(), snapshotter)
}

// hasGuests reports whether the guests of a runtime handler pull images themselves.
func (n *Node) hasGuests(handler string) bool { return n.active.Load().Settings.GuestPull[handler] }
