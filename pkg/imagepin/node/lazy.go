package node

import (
	"maps"
	"slices"

	"github.com/imagepin/imagepin/internal/upstream"
)

// unpacks returns the exports and the capabilities with which layers are unpacked in a snapshotter. annotated means that
// each snapshotter gets the annotations with which it can fetch layers lazily, as with disable_snapshot_annotations =
// false.
//
// A snapshotter that may use the annotations has no capabilities, so that it unpacks one layer after the other: lazily
// fetched layers that are unpacked in parallel end up without parents, without any error. A proxy may use them without
// exporting that it does, so only containerd's own snapshotters keep their capabilities.
func (s Snapshotter) unpacks(name string, annotated bool) (exports map[string]string, capabilities []string) {
	exports = maps.Clone(s.Exports)
	if exports == nil {
		exports = make(map[string]string)
	}
	if annotated {
		exports[upstream.RemoteAnnotations] = "true"
	}
	if s.mayFetch(name, annotated) {
		return exports, nil
	}
	return exports, s.Capabilities
}

// mayFetch reports whether a snapshotter may fetch layers lazily, or leave them to a guest.
func (s Snapshotter) mayFetch(name string, annotated bool) bool {
	return s.Exports[upstream.RemoteAnnotations] == "true" || annotated && !s.isEager(name)
}

// isEager reports whether a snapshotter is one of containerd's own. A proxy can have the name of one that containerd was
// built without.
func (s Snapshotter) isEager(name string) bool {
	_, proxy := s.Exports[upstream.ProxyAddress]
	return !proxy && slices.Contains(upstream.Snapshotters, name)
}
