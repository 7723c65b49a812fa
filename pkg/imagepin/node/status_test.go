package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// probed is a snapshotter that only answers Stat.
type probed struct {
	snapshots.Snapshotter
	stat func() error
}

func (p probed) Stat(context.Context, string) (snapshots.Info, error) {
	return snapshots.Info{}, p.stat()
}

// A snapshotter that fails, hangs or is not loaded is reported, and does not keep a status longer than its time limit. The next
// status does not ask one that hangs again.
func TestSilentSnapshotters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		release := make(chan struct{})
		all := map[string]snapshots.Snapshotter{
			"good":   probed{stat: func() error { return errdefs.ErrNotFound }},
			"broken": probed{stat: func() error { return errors.New("disk error") }},
			"hangs":  probed{stat: func() error { asked.Add(1); <-release; return nil }}, // ignores its context
		}
		n := &Node{containerd: Containerd{Snapshots: func(name string) snapshots.Snapshotter { return all[name] }}}
		targets := map[runtimeplatform.Target]int64{}
		for _, name := range []string{"good", "broken", "hangs", "missing"} {
			targets[runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: name}] = 1
			targets[runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: name}] = 1
		}
		want := map[string]string{"broken": "disk error", "hangs": "no answer within 2s", "missing": "it is not loaded"}
		for range 2 {
			if got := n.silentSnapshotters(t.Context(), targets); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the snapshotter that hangs was asked %d times, want once", n)
		}
		close(release)
	})
}

// A status has a limited number of pulls, and counts the others.
func TestRunningPulls(t *testing.T) {
	one := pull.Running{
		Ref: "registry.example.com/app:v1", Target: runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "native"}, Since: time.Unix(7, 0),
		Received: 10, Total: 30, Rate: 5, Left: 4 * time.Second, Waits: bandwidth.Registry,
	}
	for n, more := range map[int]int64{0: 0, 1: 0, maxPulls: 0, maxPulls + 1: 1, 10_000: 10_000 - maxPulls} {
		got, rest := runningPulls(slices.Repeat([]pull.Running{one}, n))
		if len(got) != min(n, maxPulls) || rest != more {
			t.Errorf("%d pulls: got %d and %d more, want %d more", n, len(got), rest, more)
		}
	}
	got, _ := runningPulls([]pull.Running{one})
	want := &api.RunningPull{
		Ref: one.Ref, Target: &api.Target{Platform: "linux/amd64", Snapshotter: "native"}, Since: timestamppb.New(one.Since),
		Received: 10, Total: 30, Rate: 5, LeftSeconds: 4, WaitsFor: "registry",
	}
	if !proto.Equal(got[0], want) {
		t.Errorf("got %v, want %v", got[0], want)
	}
}

func TestProblems(t *testing.T) {
	st := &api.StatusResponse{Index: &api.IndexStatus{Ready: true}, Pins: &api.PinStatus{Pins: 3, Drifted: 1, RetainedBytes: 899, MaxRetainedBytes: 1000}}
	if got := problems(st); len(got) > 0 {
		t.Errorf("a healthy node has problems %v", got)
	}
	st = &api.StatusResponse{
		Index: &api.IndexStatus{PendingRepairs: 2}, Pins: &api.PinStatus{Provisional: 1, RetainedBytes: 900, MaxRetainedBytes: 1000},
		Targets: []*api.TargetStatus{
			{Target: &api.Target{Platform: "linux/amd64", Snapshotter: "native"}, Error: "no answer"},
			{Target: &api.Target{Platform: "linux/arm64", Snapshotter: "native"}, Error: "no answer"},
		},
	}
	var messages []string
	for _, p := range problems(st) {
		if p.Hint == "" {
			t.Errorf("%s has no hint", p.Message)
		}
		messages = append(messages, p.Message)
	}
	for _, want := range []string{"the index is not built", "recorded images that are not ready: 2", "snapshotter native does not answer: no answer", "pins retain 900B of 1000B", "not claimed in the Kubernetes API: 1"} {
		if !strings.Contains(strings.Join(messages, "\n"), want) {
			t.Errorf("no problem %q in %q", want, messages)
		}
	}
	if len(messages) != 5 {
		t.Errorf("got %q, want 5 problems", messages)
	}
	// Repairs that wait are those of damaged keys.
	damaged := problems(&api.StatusResponse{Index: &api.IndexStatus{Ready: true, PendingRepairs: 2, Damaged: 3, Unused: 4}})
	if len(damaged) != 1 || damaged[0].Message != "damaged keys: 3" || damaged[0].Hint == "" {
		t.Errorf("with damaged and unused keys: got %v, want one problem", damaged)
	}
	failed := problems(&api.StatusResponse{Index: &api.IndexStatus{Ready: true}, Lock: &api.LockSummary{Failed: "InvalidBundle: it is truncated\nWrite it again"}})
	if len(failed) != 1 || failed[0].Message != "the last lock was not applied: InvalidBundle: it is truncated" {
		t.Errorf("with a lock that was not applied: got %v, want one problem of one line", failed)
	}
}

// TestDurableProblems checks the problem of a database that is not synced. It is none if images are not made durable.
func TestDurableProblems(t *testing.T) {
	for _, c := range []struct {
		sync, noSync bool
		want         int
	}{{true, true, 1}, {true, false, 0}, {false, true, 0}} {
		now := &active{Setup: Setup{Settings: config.Settings{Sync: c.sync}, CRI: config.CRI{Metadata: config.Metadata{NoSync: c.noSync}}}}
		if c.sync {
			now.syncer = &syncer{}
		}
		if got := durableProblems(now); len(got) != c.want || c.want > 0 && !strings.Contains(got[0].Message, "no_sync") {
			t.Errorf("sync = %t, no_sync = %t: got %v", c.sync, c.noSync, got)
		}
	}
}
