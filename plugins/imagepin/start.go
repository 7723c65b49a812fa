package imagepin

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/plugin"

	"github.com/imagepin/imagepin/internal/blobcache"
)

const (
	// reserveSize is how much garbage, in bytes, containerd may have during a start in addition to what Go allows.
	reserveSize = 32 << 20
	// heapMinimum is the size of the heap at which Go collects garbage first, if GOGC is 100.
	heapMinimum = 4 << 20
	// startTime is how long a start may take. The limit is for a CRI that never becomes ready.
	startTime = time.Minute
	// firstCalls is how long the calls after a start have the processor for themselves.
	firstCalls = time.Second
)

// start makes the start of containerd cheaper, until its CRI is ready.
//
// It has a cache of manifests for containerd's CRI, and makes garbage collections rarer. Go collects garbage whenever the
// heap has grown by as much as was in use after the last collection. That is little in a process that starts: containerd
// collects nine times for each 100 MB that it reads. Until the first collection, a start lets the heap grow to reserveSize.
// Then it has a reserve of that size, which counts as memory in use but takes none, because nothing writes to it. A higher
// GOGC would instead multiply the memory of a node with many images.
type start struct {
	blobs *blobcache.Store // set when the CRI's image plugin is created, nil without one

	mu      sync.Mutex
	delayed bool // whether collections are rarer
	percent int  // the GOGC to restore
	reserve []byte
	limit   *time.Timer
}

// newStart begins a start. It does not change collections if the operator has configured them (GOGC, GOMEMLIMIT).
func newStart() *start {
	s := &start{}
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delayed = true
	s.percent = debug.SetGCPercent(100 * reserveSize / heapMinimum)
	s.limit = time.AfterFunc(startTime, s.resumeCollections)
	// The first collection finds that nothing uses this object.
	runtime.AddCleanup(&struct{ _ *start }{}, (*start).takeReserve, s)
	return s
}

// takeReserve replaces the delay of the first collection by the reserve.
func (s *start) takeReserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delayed {
		s.reserve = make([]byte, reserveSize)
		debug.SetGCPercent(s.percent)
	}
}

// end ends the start. It can be called again.
func (s *start) end() {
	s.dropBlobs()
	s.resumeCollections()
}

// endAfter ends the start when the CRI is ready, or when ctx ends. It waits a moment before it collects garbage: the first
// calls after a start are the ones that others wait for.
func (s *start) endAfter(ctx context.Context, ready ...<-chan struct{}) {
	for _, r := range ready {
		select {
		case <-r:
		case <-ctx.Done():
		}
	}
	s.dropBlobs()
	select {
	case <-time.After(firstCalls):
	case <-ctx.Done():
	}
	s.resumeCollections()
}

func (s *start) dropBlobs() {
	if s.blobs != nil {
		s.blobs.Drop()
	}
}

// resumeCollections makes garbage collections as frequent as before the start, and returns the garbage of the start to the
// system. Go itself returns it slowly.
func (s *start) resumeCollections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.delayed {
		return
	}
	s.delayed, s.reserve = false, nil
	s.limit.Stop()
	debug.SetGCPercent(s.percent)
	debug.FreeOSMemory()
}

// watchReadiness returns an init context for a plugin, and a channel that is closed when the plugin is ready. A plugin
// that does not report that is ready when it has been created; the caller closes the channel with the returned function.
func watchReadiness(ic *plugin.InitContext) (inner *plugin.InitContext, ready <-chan struct{}, created func()) {
	done := make(chan struct{})
	var (
		once     sync.Once
		reported bool
	)
	c := *ic
	c.RegisterReadiness = func() func() {
		reported = true
		report := ic.RegisterReadiness()
		return func() {
			report()
			once.Do(func() { close(done) })
		}
	}
	return &c, done, func() {
		if !reported {
			once.Do(func() { close(done) })
		}
	}
}
