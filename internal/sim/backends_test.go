package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/content/local"
	snnative "github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// class returns the class of an error, as far as callers of containerd distinguish it.
func class(err error) string {
	for _, c := range []error{errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable} {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	if err != nil {
		return "another error"
	}
	return "ok"
}

// TestLayersAreASnapshotter checks that the snapshotter in memory and containerd's native one return the same results.
func TestLayersAreASnapshotter(t *testing.T) {
	for seed := range uint64(5) {
		real, err := snnative.NewSnapshotter(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		both := []snapshots.Snapshotter{newLayers(), real}
		rng := rand.New(rand.NewPCG(seed, 1))
		key := func() string { return string(rune('a' + rng.IntN(6))) }
		var script []string
		for range 150 {
			key, other, op := key(), key(), rng.IntN(8)
			if info, err := both[0].Stat(t.Context(), key); (op == 3 || op == 4) && err == nil && info.Kind == snapshots.KindView {
				continue // views are never committed, and each snapshotter fails differently
			}
			var outcomes [2]string
			for i, sn := range both {
				outcomes[i] = onSnapshotter(t.Context(), sn, op, key, other)
			}
			script = append(script, fmt.Sprintf("%d %s %s: %s", op, key, other, outcomes[1]))
			if outcomes[0] != outcomes[1] {
				t.Fatalf("%s\nseed %d: the one in memory returns: %s", strings.Join(script, "\n"), seed, outcomes[0])
			}
		}
		if err := real.Close(); err != nil {
			t.Error(err)
		}
	}
}

// onSnapshotter performs one operation. It returns the result and the state after it.
func onSnapshotter(ctx context.Context, sn snapshots.Snapshotter, op int, key, other string) string {
	label := snapshots.WithLabels(map[string]string{"containerd.io/snapshot/x": other})
	format := func(i snapshots.Info) string {
		return fmt.Sprintf("%s %s on %q %v", i.Name, i.Kind, i.Parent, i.Labels)
	}
	var (
		info snapshots.Info
		err  error
	)
	switch op {
	case 0:
		_, err = sn.Prepare(ctx, key, "", label)
	case 1:
		_, err = sn.Prepare(ctx, key, other)
	case 2:
		_, err = sn.View(ctx, key, other, label)
	case 3, 4:
		err = sn.Commit(ctx, other, key)
	case 5:
		err = sn.Remove(ctx, key)
	case 6:
		info, err = sn.Stat(ctx, key)
	case 7:
		info, err = sn.Update(ctx, snapshots.Info{Name: key, Labels: map[string]string{"containerd.io/snapshot/x": other}}, "labels.containerd.io/snapshot/x")
	}
	all := make(map[string]string)
	if walked := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error { all[i.Name] = format(i); return nil }); walked != nil && !errdefs.IsNotFound(walked) { // it never had a snapshot
		return walked.Error()
	}
	if err != nil {
		info = snapshots.Info{}
	}
	return fmt.Sprintf("%s %s; %v", class(err), format(info), slices.Sorted(maps.Values(all)))
}

// TestBlobsAreAContentStore checks that the content store in memory and containerd's own return the same results.
func TestBlobsAreAContentStore(t *testing.T) {
	for seed := range uint64(5) {
		real, err := local.NewStore(filepath.Join(t.TempDir(), "content"))
		if err != nil {
			t.Fatal(err)
		}
		both := []*contentScript{{store: newBlobs()}, {store: real}}
		rng := rand.New(rand.NewPCG(seed, 2))
		var script []string
		for range 150 {
			op, n, flaw := rng.IntN(9), rng.IntN(3), rng.IntN(6)
			var outcomes [2]string
			for i, c := range both {
				outcomes[i] = c.step(t.Context(), op, n, flaw)
			}
			script = append(script, fmt.Sprintf("%d %d %d: %s", op, n, flaw, outcomes[1]))
			if outcomes[0] != outcomes[1] {
				t.Fatalf("%s\nseed %d: the one in memory returns: %s", strings.Join(script, "\n"), seed, outcomes[0])
			}
		}
		for _, c := range both {
			for _, w := range c.writers {
				if w != nil {
					_ = w.Close()
				}
			}
		}
	}
}

// contentScript is a content store and its open writers.
type contentScript struct {
	store   content.Store
	writers [3]content.Writer
}

// step performs one operation with blob number n. It returns the result and the state after it.
func (c *contentScript) step(ctx context.Context, op, n, flaw int) string {
	data := []byte(strings.Repeat("x", n+1))
	desc := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	ref := fmt.Sprintf("ref-%d", n)
	w := c.writers[n]
	var (
		err    error
		result string
	)
	switch op {
	case 0, 1:
		if w == nil {
			w, err = c.store.Writer(ctx, content.WithRef(ref), content.WithDescriptor(desc))
			if err == nil {
				c.writers[n] = w
			}
		}
	case 2:
		if w != nil {
			_, err = w.Write(data)
		}
	case 3, 4:
		if w != nil {
			size, expected := desc.Size, desc.Digest
			switch flaw {
			case 0:
				size++
			case 1:
				expected = digest.FromString("another")
			case 2:
				size, expected = 0, ""
			}
			err = w.Commit(ctx, size, expected)
			c.writers[n] = nil
			if cerr := w.Close(); cerr != nil {
				return cerr.Error()
			}
		}
	case 5:
		var info content.Info
		if info, err = c.store.Info(ctx, desc.Digest); err == nil {
			result = fmt.Sprint(info.Digest, info.Size)
		}
	case 6:
		err = c.store.Delete(ctx, desc.Digest)
	case 7:
		var b []byte
		b, err = content.ReadBlob(ctx, c.store, desc)
		result = string(b)
	case 8:
		if w == nil {
			err = c.store.Abort(ctx, ref)
		} else {
			var s content.Status
			if s, err = w.Status(); err == nil {
				result = fmt.Sprint(s.Ref, s.Offset, s.Total)
			}
		}
	}
	var all []string
	if werr := c.store.Walk(ctx, func(i content.Info) error { all = append(all, i.Digest.String()); return nil }); werr != nil && !errors.Is(werr, fs.ErrNotExist) { // it never had a blob
		return werr.Error()
	}
	statuses, serr := c.store.ListStatuses(ctx)
	if serr != nil {
		return serr.Error()
	}
	for _, s := range statuses {
		all = append(all, fmt.Sprint(s.Ref, s.Offset))
	}
	slices.Sort(all)
	return fmt.Sprintf("%s %s; %v", class(err), result, all)
}
