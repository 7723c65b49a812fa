package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingSnapshotter blocks in Walk until free is closed. It ignores the context.
type hangingSnapshotter struct {
	snapshots.Snapshotter
	reached, free chan struct{}
}

func (s hangingSnapshotter) Walk(context.Context, snapshots.WalkFunc, ...string) error {
	close(s.reached)
	<-s.free
	return nil
}

// TestLocksHonorContext checks that calls that wait for a blocked cache return when their context is canceled.
func TestLocksHonorContext(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	reached, free := make(chan struct{}), make(chan struct{})

	x := newSandboxes(func(context.Context) ([]*runtime.PodSandbox, error) {
		close(reached)
		<-free
		return nil, nil
	}, (&fakeSandboxes{}).status)
	listed := make(chan error, 1)
	go func() {
		_, err := x.byID(t.Context(), "one")
		listed <- err
	}()
	<-reached
	if _, err := x.byID(canceled, "another"); !errors.Is(err, context.Canceled) {
		t.Errorf("byID: got %v, want context.Canceled", err)
	}
	if _, err := x.byMark(canceled, []string{"a mark"}); !errors.Is(err, context.Canceled) {
		t.Errorf("byMark: got %v, want context.Canceled", err)
	}
	close(free)
	if err := <-listed; err != nil {
		t.Error(err)
	}

	sn := hangingSnapshotter{reached: make(chan struct{}), free: make(chan struct{})}
	u := newUsageCache()
	measured := make(chan error, 1)
	go func() {
		_, err := u.of(t.Context(), sn, "stuck", "/", time.Minute)
		measured <- err
	}()
	<-sn.reached
	if _, err := u.of(canceled, sn, "another", "/", time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("usage: got %v, want context.Canceled", err)
	}
	close(sn.free)
	if err := <-measured; err != nil {
		t.Error(err)
	}
}
