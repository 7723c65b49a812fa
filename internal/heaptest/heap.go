// Package heaptest measures the memory of a function in tests.
package heaptest

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"testing"
)

// Grown is by how many bytes the heap grew, without garbage.
type Grown struct {
	// Peak is the maximum while a function ran, Kept is what its result keeps.
	Peak, Kept int64
}

// Of runs a function, and measures the heap at the end of each garbage collection while it runs, which are many. The result of the
// function is in use until its memory is measured. Tests that run at the same time disturb it.
//
// One processor runs the function and the collections: what is allocated during a collection counts as used, and on a busy machine, the
// function would run on while the system has stopped the thread of the collection.
func Of[T any](t testing.TB, run func() T) (T, Grown) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	before := collected()
	var peak atomic.Int64
	var ended atomic.Bool
	sample(&peak, &ended)
	result := run()
	ended.Store(true)
	after := collected()
	runtime.KeepAlive(result)
	return result, Grown{Peak: max(peak.Load(), after) - before, Kept: after - before}
}

// sample notes the maximum of the heap at the end of each garbage collection, when the object that it makes is collected.
func sample(peak *atomic.Int64, ended *atomic.Bool) {
	runtime.SetFinalizer(new([4]*byte), func(*[4]*byte) {
		if ended.Load() {
			return
		}
		for now, was := live(), peak.Load(); now > was && !peak.CompareAndSwap(was, now); was = peak.Load() {
		}
		sample(peak, ended)
	})
}

// collected returns the heap after a garbage collection. Two make sure that what has a finalizer is gone too.
func collected() int64 {
	runtime.GC()
	runtime.GC()
	return live()
}

// live returns the heap at the end of the last garbage collection.
func live() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
