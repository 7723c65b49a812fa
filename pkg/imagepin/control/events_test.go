package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	containerdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// oneRecord is an image store with the record of the reference app.
type oneRecord struct{ containerdimages.Store }

func (oneRecord) Get(_ context.Context, name string) (containerdimages.Image, error) {
	if name != app {
		return containerdimages.Image{}, errdefs.ErrNotFound
	}
	return containerdimages.Image{Name: name, Target: ocispec.Descriptor{Digest: appRoot}}, nil
}

func TestEvent(t *testing.T) {
	entry := imagepin.Entry{
		Key:  imagepin.Key{Ref: app, Target: runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "native"}},
		Root: ocispec.Descriptor{Digest: appRoot}, Manifest: appManifest, ImageID: appID, ReadyAt: time.Unix(1, 0), Source: imagepin.SourcePull,
	}
	name, value, err := imagepin.EncodeKeyLabel(entry)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{name: value, "other": "label", imagepin.KeyLabelPrefix + "damaged": "?"}
	for topic, c := range map[string]struct {
		event events.Event
		want  *api.Event
	}{
		"/images/create": {
			&eventtypes.ImageCreate{Name: app, Labels: keys},
			&api.Event{Ref: app, Digest: appRoot.String(), Targets: []*api.Target{{Platform: "linux/arm64", Snapshotter: "native"}}},
		},
		"/images/update":    {&eventtypes.ImageUpdate{Name: appID.String()}, &api.Event{Ref: appID.String(), Digest: appID.String()}},
		"/images/delete":    {&eventtypes.ImageDelete{Name: app}, &api.Event{Ref: app}},
		"/content/create":   {&eventtypes.ContentCreate{Digest: "d", Size: 3}, &api.Event{Digest: "d", Size: 3}},
		"/content/delete":   {&eventtypes.ContentDelete{Digest: "d"}, &api.Event{Digest: "d"}},
		"/snapshot/prepare": {&eventtypes.SnapshotPrepare{Key: "k", Parent: "p", Snapshotter: "s"}, &api.Event{Snapshot: "k", Parent: "p", Snapshotter: "s"}},
		"/snapshot/commit":  {&eventtypes.SnapshotCommit{Key: "k", Name: "n", Snapshotter: "s"}, &api.Event{Snapshot: "n", Snapshotter: "s"}},
		"/snapshot/remove":  {&eventtypes.SnapshotRemove{Key: "k", Snapshotter: "s"}, &api.Event{Snapshot: "k", Snapshotter: "s"}},
		"/imagepin/pin/moved": {
			&api.PinEvent{Pin: &api.Pin{Ref: app, Scope: "node", Root: &api.Descriptor{Digest: "new"}, Drift: &api.Drift{Digest: "newer"}}, Previous: "old"},
			&api.Event{Ref: app, Scope: "node", Digest: "new", Previous: "old", Drift: "newer"},
		},
		"/images/other": {&eventtypes.NamespaceCreate{Name: "n"}, nil},
	} {
		encoded, err := typeurl.MarshalAny(c.event)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Config{Records: oneRecord{}})
		at := time.Unix(3, 0)
		if c.want != nil {
			c.want.Topic, c.want.At = topic, timestamppb.New(at)
		}
		got := s.event(t.Context(), &events.Envelope{Topic: topic, Timestamp: at, Event: encoded})
		if (got == nil) != (c.want == nil) || got != nil && !proto.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", topic, got, c.want)
		}
	}
}

// A caller that does not read loses events, and learns how many with the next one.
func TestEventBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		published, failed := make(chan *events.Envelope), make(chan error, 1)
		b := eventBuffer{all: make(chan *api.Event, 2)}
		ended := make(chan error, 1)
		go func() {
			ended <- b.fill(t.Context(), published, failed, func(e *events.Envelope) *api.Event {
				if e.Topic == "omit" {
					return nil
				}
				return &api.Event{Topic: e.Topic}
			})
		}()
		publish := func(topics ...string) {
			for _, topic := range topics {
				published <- &events.Envelope{Topic: topic}
			}
			synctest.Wait()
		}
		publish("1", "omit", "2", "3", "omit", "4")
		first := <-b.all
		publish("5")
		for i, want := range []*api.Event{{Topic: "1"}, {Topic: "2"}, {Topic: "5", Lost: 2}} {
			got := first
			if i > 0 {
				got = <-b.all
			}
			if !proto.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		publish("6")
		if got := <-b.all; got.Lost != 0 {
			t.Errorf("got %v, want no lost events", got)
		}
		failed <- errors.New("containerd stops")
		if err := <-ended; err == nil || err.Error() != "containerd's event stream has ended: containerd stops" {
			t.Errorf("got %v", err)
		}
	})
}
