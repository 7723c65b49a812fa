package health

import (
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config configures a Checker. All fields are required, except ForGuests and NeedsFiles.
type Config struct {
	Images      *store.Store
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
	// Runtimes returns the runtime handlers that are currently configured.
	Runtimes func() *runtimeplatform.Set
	// ForGuests reports whether images in a snapshotter need no files, see package guestpull. It may be nil.
	ForGuests func(snapshotter string) bool
	// NeedsFiles reports whether an image needs files also in such a snapshotter, by its reference. It may be nil.
	NeedsFiles func(ref string) bool
}

// Checker compares the recorded with the actual state.
type Checker struct {
	config   Config
	damage   noted
	guests   guests
	suspects suspects
}

// New returns a checker.
func New(c Config) *Checker {
	if c.ForGuests == nil {
		c.ForGuests = func(string) bool { return false }
	}
	if c.NeedsFiles == nil {
		c.NeedsFiles = func(string) bool { return false }
	}
	return &Checker{config: c}
}
