package blobs_test

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// checked is a content store with a Check of its own. It does not open files.
type checked struct{ content.Store }

func (checked) Error() string { return "differs" }

func (c checked) Check(_ context.Context, _ digest.Digest, size int64) error {
	if size != 4 {
		return c
	}
	return nil
}

func (c checked) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) {
	return nil, c
}

// TestWithoutEqualUpdates checks which updates are written, and that the labels are those of containerd's content store after all.
func TestWithoutEqualUpdates(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	d := all.Add("", []byte("blob")).Digest
	absent := ctdtest.Blobs{}.Add("", []byte("absent")).Digest
	n.Write(ctx, t, all)
	for size, want := range map[int64]error{4: nil, 5: checked{}} {
		if err := blobs.Check(ctx, blobs.WithoutEqualUpdates(checked{n.Content}), d, size); (err == nil) != (want == nil) {
			t.Errorf("size %d: got %v, want the answer of the store's own Check", size, err)
		}
	}
	writes := 0
	store := blobs.WithoutEqualUpdates(ctdtest.Content{Store: n.Content, Before: ctdtest.On("Update", func(string) error {
		writes++
		return nil
	})})
	for _, c := range []struct {
		name   string
		labels map[string]string
		fields []string
		writes int
		want   string // of the label a
	}{
		{"new", map[string]string{"a": "1", "b": "2"}, []string{"labels.a", "labels.b"}, 1, "1"},
		{"equal", map[string]string{"a": "1", "b": "2"}, []string{"labels.a", "labels.b"}, 0, "1"},
		{"one of them", map[string]string{"a": "1", "b": "other"}, []string{"labels.a"}, 0, "1"},
		{"one differs", map[string]string{"a": "1", "b": "3"}, []string{"labels.a", "labels.b"}, 1, "1"},
		{"all labels, equal", map[string]string{"a": "1", "b": "3"}, []string{"labels"}, 1, "1"},
		{"no fields, equal", map[string]string{"a": "1"}, nil, 1, "1"},
		{"another one", map[string]string{"b": "1"}, []string{"labels.b"}, 1, "1"},
		{"removed", map[string]string{"a": ""}, []string{"labels.a"}, 1, ""},
		{"removed again", map[string]string{"a": ""}, []string{"labels.a"}, 1, ""},
	} {
		writes = 0
		got, err := store.Update(ctx, content.Info{Digest: d, Labels: c.labels}, c.fields...)
		if err != nil || writes != c.writes || got.Digest != d || got.Labels["a"] != c.want {
			t.Errorf("%s: got %+v, %v, %d writes, want a=%q, %d writes", c.name, got, err, writes, c.want, c.writes)
		}
		if info, err := n.Content.Info(ctx, d); err != nil || info.Labels["a"] != c.want {
			t.Errorf("%s: the store has %+v, %v, want a=%q", c.name, info, err, c.want)
		}
	}
	if _, err := store.Update(ctx, content.Info{Digest: absent, Labels: map[string]string{"a": "1"}}, "labels.a"); !errdefs.IsNotFound(err) {
		t.Errorf("absent: got %v, want ErrNotFound", err)
	}
	if _, err := store.Update(ctx, content.Info{Digest: d, Labels: map[string]string{"a": "1"}}, "size"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another field: got %v, want ErrInvalidArgument", err)
	}
}
