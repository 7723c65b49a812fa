package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingSnapshotter hangs in Walk, and ignores its context, until free is closed.
type hangingSnapshotter struct {
	snapshots.Snapshotter
	reached, free chan struct{}
}

func (s hangingSnapshotter) Walk(context.Context, snapshots.WalkFunc, ...string) error {
	close(s.reached)
	<-s.free
	return nil
}

// Calls that wait for a hanging cache fill give up when their context ends.
func TestLocksHonorContext(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
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
	if _, err := x.byID(gone, "another"); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler of a sandbox: %v", err)
	}
	if _, err := x.byMark(gone, []string{"a mark"}); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler of a pod: %v", err)
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
	if _, err := u.of(gone, sn, "another", "/", time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("the usage of a snapshotter: %v", err)
	}
	close(sn.free)
	if err := <-measured; err != nil {
		t.Error(err)
	}
}
