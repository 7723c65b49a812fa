package testkit

import (
	"context"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// AwaitIdle waits until the registry serves no request.
func AwaitIdle(t *testing.T, reg *registry.Registry) {
	t.Helper()
	Eventually(t, "all requests to the registry are done", func(context.Context) (bool, error) {
		return reg.Count(func(q registry.Request) bool { return !q.Done }) == 0, nil
	})
}

// AwaitRequest waits for a request.
func AwaitRequest(t *testing.T, reg *registry.Registry, conditions ...func(registry.Request) bool) {
	t.Helper()
	if _, err := reg.Wait(Context(t), conditions...); err != nil {
		t.Fatal(err)
	}
}

// Async starts a call and returns a function that waits for its result.
func Async(call func() (string, error)) func() (string, error) {
	var got string
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = call()
	}()
	return func() (string, error) {
		<-done
		return got, err
	}
}

// WaitForImage waits until the CRI lists a reference that another tool created.
func WaitForImage(t *testing.T, n *node.Node, ref string) (id string) {
	t.Helper()
	Eventually(t, ref+" is listed", func(ctx context.Context) (bool, error) {
		img, err := n.ImageStatus(ctx, ref, "")
		id = img.GetId()
		return id != "", err
	})
	return id
}

// Eventually waits for a condition that containerd does not wait for.
func (r *Rig) Eventually(what string, done func() bool) {
	r.T.Helper()
	Eventually(r.T, what, func(context.Context) (bool, error) { return done(), nil })
}
