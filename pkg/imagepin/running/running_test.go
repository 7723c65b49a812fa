package running

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const app = "registry.example/app:v1"

// id returns a digest for a name.
func id(name string) digest.Digest { return digest.FromString(name) }

// images are the images of a node.
type images struct{ ready, damaged []imagepin.Entry }

func (i images) ByID(id digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(i.ready), func(e imagepin.Entry) bool { return e.ImageID != id })
}

func (i images) ByRoot(root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(i.ready), func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

func (i images) FindDamaged(name string) (found []store.Damaged) {
	for _, e := range i.damaged {
		if e.ImageID.String() == name {
			found = append(found, store.Damaged{Entry: e})
		}
	}
	return found
}

// pins has the pin of a reference.
type pins struct {
	pin *pin.Pin
	err error
}

func (p pins) PinOf(_ context.Context, ref string, _ policy.Pod) (*pin.Pin, error) {
	if p.pin == nil || ref != p.pin.Ref {
		return nil, p.err
	}
	return p.pin, p.err
}

// at returns a time, in minutes.
func at(minutes int) time.Time { return time.Unix(0, 0).Add(time.Duration(minutes) * time.Minute) }

// entry returns the entry of a digest for a handler, with an image ID and a manifest of their own.
func entry(ref, root, imageID, snapshotter string) imagepin.Entry {
	return imagepin.Entry{
		Key:  imagepin.Key{Ref: ref, Target: runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: snapshotter}},
		Root: ocispec.Descriptor{Digest: id(root)}, Manifest: id("manifest of " + imageID), ImageID: id(imageID),
	}
}

// pinned returns a pin that had earlier digests, each for 10 minutes, and has root since minute 100.
func pinned(root string, earlier ...string) *pin.Pin {
	p := &pin.Pin{ID: pin.ID{Scope: policy.NodeScope, Ref: app}, Root: ocispec.Descriptor{Digest: id(root)}, MadeAt: at(100)}
	for i, name := range earlier {
		p.History = append(p.History, pin.Change{Digest: id(name), From: at(100 - 10*(len(earlier)-i))})
	}
	return p
}

func TestCompare(t *testing.T) {
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "overlayfs"}, {Name: "kata", Snapshotter: "native"}},
		runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	one, two := entry(app, "one", "image one", "overlayfs"), entry(app, "two", "image two", "overlayfs")
	away := errors.New("away")
	for _, test := range []struct {
		name   string
		images images
		pins   pins
		ref    string
		image  string
		made   int // when the container was created
		digest digest.Digest
		since  int // when it began to differ; 0 if it does not
		err    error
	}{
		{"the pinned digest", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("one")}, app, "image one", 110, id("one"), 0, nil},
		{"the pin has moved", images{ready: []imagepin.Entry{one, two}}, pins{pin: pinned("two", "one")}, app, "image one", 95, id("one"), 100, nil},
		{"the pin has moved, and its digest is not on the node", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("two", "one")}, app, "image one", 95, id("one"), 100, nil},
		{"the pin has moved twice", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("three", "one", "two")}, app, "image one", 85, id("one"), 90, nil},
		{"the pin has moved twice since the image was pinned, and had it before", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("three", "one", "two", "one", "two")}, app, "image one", 65, id("one"), 90, nil},
		{"the pin never had the image", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("three", "two", "four")}, app, "image one", 10, id("one"), 80, nil},
		{"the container is younger than the pin", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("two", "one")}, app, "image one", 120, id("one"), 120, nil},
		{"another index with the same image", images{ready: []imagepin.Entry{one, entry(app, "two", "image one", "overlayfs")}}, pins{pin: pinned("two", "one")}, app, "image one", 95, id("two"), 0, nil},
		{"a pin to the manifest of the platform", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("manifest of image one")}, app, "image one", 95, id("manifest of image one"), 0, nil},
		{"a damaged image", images{damaged: []imagepin.Entry{one}, ready: []imagepin.Entry{two}}, pins{pin: pinned("two")}, app, "image one", 95, id("one"), 100, nil},
		{"no pin", images{ready: []imagepin.Entry{two, one}}, pins{}, app, "image one", 95, id("one"), 0, nil},
		{"an image by its ID", images{ready: []imagepin.Entry{one}}, pins{pin: pinned("two")}, "", "image one", 95, id("one"), 0, nil},
		{"a removed image, and the pinned one is not on the node", images{}, pins{pin: pinned("two")}, app, "image one", 95, "", 0, nil},
		{"a removed image, and the pinned one is for another target", images{ready: []imagepin.Entry{entry(app, "two", "image two", "native")}}, pins{pin: pinned("two")}, app, "image one", 95, "", 0, nil},
		{"a removed image, and the pinned one is on the node", images{ready: []imagepin.Entry{two}}, pins{pin: pinned("two")}, app, "image one", 95, "", 100, nil},
		{"an unknown image", images{ready: []imagepin.Entry{two}}, pins{pin: pinned("two")}, app, "", 95, "", 0, nil},
		{"the image in another repository", images{ready: []imagepin.Entry{entry("registry.example/copy:v1", "copy", "image one", "overlayfs"), one}}, pins{}, app, "image one", 95, id("one"), 0, nil},
		{"the image of another handler", images{ready: []imagepin.Entry{entry(app, "other", "image one", "native"), one}}, pins{}, app, "image one", 95, id("one"), 0, nil},
		{"a pin that is not known", images{ready: []imagepin.Entry{one}}, pins{err: away}, app, "image one", 95, id("one"), 0, away},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Comparer{Images: test.images, Pins: test.pins, Runtimes: func() *runtimeplatform.Set { return runtimes }}
			container := Container{Ref: test.ref, CreatedAt: at(test.made)}
			if test.image != "" {
				container.ImageID = id(test.image)
			}
			got := c.Compare(t.Context(), container)
			var since time.Time
			if test.since > 0 {
				since = at(test.since)
			}
			if got.Digest != test.digest || got.Differs != (test.since > 0) || !got.Since.Equal(since) || !errors.Is(got.Err, test.err) {
				t.Errorf("got digest %s, differs %t since %s, %v; want %s since %s, %v", got.Digest, got.Differs, got.Since, got.Err, test.digest, since, test.err)
			}
			if want := test.pins.pin; test.ref == app && got.Pin != want {
				t.Errorf("got pin %v, want %v", got.Pin, want)
			}
		})
	}
}

// TestUnconfiguredHandler compares a container of a handler that is no longer configured.
func TestUnconfiguredHandler(t *testing.T) {
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "overlayfs"}}, runtimeplatform.Host{})
	if err != nil {
		t.Fatal(err)
	}
	c := Comparer{
		Images: images{ready: []imagepin.Entry{entry(app, "one", "image one", "gone")}}, Pins: pins{pin: pinned("two", "one")},
		Runtimes: func() *runtimeplatform.Set { return runtimes },
	}
	if got := c.Compare(t.Context(), Container{Ref: app, ImageID: id("image one"), Handler: "gone", CreatedAt: at(1)}); got.Digest != id("one") || !got.Since.Equal(at(100)) {
		t.Errorf("got %+v", got)
	}
}

// TestContainers checks the order of the list.
func TestContainers(t *testing.T) {
	of := func(namespace, name, container, volume string) Container {
		return Container{Pod: policy.Pod{Namespace: namespace, Name: name}, Name: container, ID: container, Volume: volume}
	}
	want := []Container{of("a", "z", "c", ""), of("b", "a", "a", ""), of("b", "a", "a", "/v"), of("b", "a", "a", "/w"), of("b", "a", "b", "")}
	shuffled := []Container{want[3], want[1], want[4], want[0], want[2]}
	c := Comparer{List: func(context.Context) ([]Container, error) { return shuffled, nil }}
	got, err := c.Containers(t.Context())
	if err != nil || !slices.EqualFunc(got, want, func(a, b Container) bool { return a.Pod.Name == b.Pod.Name && a.Name == b.Name && a.Volume == b.Volume }) {
		t.Errorf("got %v, %v", got, err)
	}
}
