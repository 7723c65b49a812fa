package durable

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestSync checks that directories of one file system share a sync, and what cannot be opened.
func TestSync(t *testing.T) {
	dir, b := t.TempDir(), New()
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, other} {
		if err := b.Open(path); err != nil {
			t.Fatal(err)
		}
	}
	if b.directories[dir].sync != b.directories[other].sync {
		t.Error("two directories of one file system do not share a sync")
	}
	if err := b.Sync(t.Context(), dir, other); err != nil {
		t.Error(err)
	}
	if err := b.SyncNames(t.Context(), dir, other); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Sync(t.Context(), file); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file: got %v, want ErrInvalidArgument", err)
	}
	if err := b.Sync(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: got %v, want fs.ErrNotExist", err)
	}
	if err := b.Sync(t.Context(), ""); !errdefs.IsNotFound(err) {
		t.Errorf("an unknown directory: got %v, want ErrNotFound", err)
	}
}

// TestFailedSync checks that a sync that fails is not the result of a later call, and that a caller does not wait for a disk
// that does not answer.
func TestFailedSync(t *testing.T) {
	b, dir := New(), t.TempDir()
	if err := b.Open(dir); err != nil {
		t.Fatal(err)
	}
	failure, answer := errors.New("input/output error"), make(chan error)
	b.directories[dir].sync.do = func() error { return <-answer }
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has gone")
	cancel(gone)
	if err := b.Sync(ctx, dir); !errors.Is(err, gone) || errdefs.IsUnavailable(err) {
		t.Errorf("canceled: got %v, want %v", err, gone)
	}
	answer <- nil
	result := make(chan error)
	go func() { result <- b.Sync(t.Context(), dir) }()
	answer <- failure
	if err := <-result; !errors.Is(err, failure) || !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want %v and ErrUnavailable", err, failure)
	}
	go func() { result <- b.Sync(t.Context(), dir) }()
	answer <- nil
	if err := <-result; err != nil {
		t.Errorf("after a failure: %v", err)
	}
}

// TestRounds checks that a caller never gets the result of a call that began before it, and that callers share calls.
func TestRounds(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	r := &rounds{do: func() error {
		began <- struct{}{}
		<-end
		return nil
	}}
	first := r.join()
	<-began
	second := r.join()
	if second == first {
		t.Error("a caller joined a call that had begun")
	}
	for range 10 {
		if r.join() != second {
			t.Error("callers that wait at the same time do not share a call")
		}
	}
	end <- struct{}{}
	<-first.done
	<-began
	third := r.join()
	end <- struct{}{}
	<-second.done
	<-began
	end <- struct{}{}
	<-third.done
}
