package imagepin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
)

func TestAtomically(t *testing.T) {
	n := ctdtest.New(t)
	ctx := n.Context(t)
	r := newRecords(n.DB, n.Events)
	events, failed := n.Events.Subscribe(ctx, `topic~="^/images/"`)
	next := func() string {
		t.Helper()
		select {
		case e := <-events:
			v, err := typeurl.UnmarshalAny(e.Event)
			if err != nil {
				t.Fatal(err)
			}
			if e.Namespace != ctdtest.Namespace {
				t.Errorf("event: got namespace %s, want %s", e.Namespace, ctdtest.Namespace)
			}
			switch v := v.(type) {
			case *eventsapi.ImageCreate:
				return fmt.Sprint(e.Topic, " ", v.Name, " ", v.Labels["k"])
			case *eventsapi.ImageUpdate:
				return fmt.Sprint(e.Topic, " ", v.Name, " ", v.Labels["k"])
			case *eventsapi.ImageDelete:
				return fmt.Sprint(e.Topic, " ", v.Name)
			}
			return fmt.Sprintf("%T", v)
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(10 * time.Second):
			t.Fatal("received no event")
		}
		return ""
	}
	blobs := ctdtest.Blobs{}
	target := blobs.Image("linux/amd64", "a", nil).Manifest
	record := func(name, label string) images.Image {
		return images.Image{Name: name, Target: ocispec.Descriptor{MediaType: target.MediaType, Digest: target.Digest, Size: target.Size}, Labels: map[string]string{"k": label}}
	}

	// An error rolls back all writes and their events.
	stop := errors.New("stop")
	err := r.Atomically(ctx, func(ctx context.Context, store images.Store) error {
		if _, err := store.Create(ctx, record("a", "1")); err != nil {
			return err
		}
		if _, err := store.Get(ctx, "a"); err != nil {
			t.Errorf("reading a write in its transaction: %v", err)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("got %v, want %v", err, stop)
	}
	if all := n.Records(t); len(all) != 0 {
		t.Errorf("records after a rollback: %v", all)
	}

	err = r.Atomically(ctx, func(ctx context.Context, store images.Store) error {
		if _, err := store.Create(ctx, record("a", "1")); err != nil {
			return err
		}
		if _, err := store.Create(ctx, record("b", "1")); err != nil {
			return err
		}
		if _, err := store.Update(ctx, record("a", "2"), "labels.k"); err != nil {
			return err
		}
		if err := store.Delete(ctx, "b"); err != nil {
			return err
		}
		// Failed writes have no events.
		if _, err := store.Create(ctx, record("a", "3")); !errdefs.IsAlreadyExists(err) {
			t.Errorf("Create: got %v, want an AlreadyExists error", err)
		}
		if _, err := store.Update(ctx, record("none", "3"), "labels.k"); !errdefs.IsNotFound(err) {
			t.Errorf("Update: got %v, want a NotFound error", err)
		}
		if err := store.Delete(ctx, "none"); !errdefs.IsNotFound(err) {
			t.Errorf("Delete: got %v, want a NotFound error", err)
		}
		if len(events) != 0 {
			t.Error("an event was published before the commit")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Images.Create(ctx, record("last", "")); err != nil {
		t.Fatal(err)
	}
	if err := n.Events.Publish(ctx, "/images/create", &eventsapi.ImageCreate{Name: "last"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "/images/create last " {
		got = append(got, next())
	}
	want := []string{"/images/create a 1", "/images/create b 1", "/images/update a 2", "/images/delete b", "/images/create last "}
	if !slices.Equal(got, want) {
		t.Errorf("got events %q, want %q", got, want)
	}
	if all := n.Records(t); len(all) != 2 || all["a"].Labels["k"] != "2" {
		t.Errorf("got records %v, want 2 with the update", all)
	}
}
