package pull

import (
	"context"
	"maps"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Each write of containerd's metadata is a transaction, with a sync of the disk. This file has what saves some of them in a pull.

// leased are the blobs that leases have. A nil one is empty, and stays so.
type leased struct {
	mu    sync.Mutex
	blobs map[leasedBlob]bool
}

type leasedBlob struct {
	lease  string
	digest digest.Digest
}

// add notes that the lease in a context has a blob.
func (l *leased) add(ctx context.Context, d digest.Digest) {
	id, ok := leases.FromContext(ctx)
	if l == nil || !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blobs == nil {
		l.blobs = make(map[leasedBlob]bool)
	}
	l.blobs[leasedBlob{id, d}] = true
}

// has reports whether it is known that the lease in a context has a blob.
func (l *leased) has(ctx context.Context, d digest.Digest) bool {
	id, ok := leases.FromContext(ctx)
	if l == nil || !ok {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blobs[leasedBlob{id, d}]
}

// distributionSource returns the labels that containerd's transfer service sets on what it has fetched for a reference, see
// [docker.AppendDistributionSourceLabel]. A blob that is written with them needs no second write.
func distributionSource(ref string) map[string]string {
	var set capturedLabels
	note, err := docker.AppendDistributionSourceLabel(&set, ref)
	if err != nil {
		return nil // the transfer service fails
	}
	_, _ = note(context.Background(), ocispec.Descriptor{}) // fails only if set does
	return set.labels
}

// capturedLabels is a store with one blob, which has no labels before an update.
type capturedLabels struct {
	content.Manager
	labels map[string]string
}

func (c *capturedLabels) Info(context.Context, digest.Digest) (content.Info, error) {
	return content.Info{}, nil
}

func (c *capturedLabels) Update(_ context.Context, info content.Info, _ ...string) (content.Info, error) {
	c.labels = info.Labels
	return info, nil
}

// withLabels adds labels to those that a blob is committed with.
func withLabels(labels map[string]string) content.Opt {
	return func(info *content.Info) error {
		if len(labels) == 0 {
			return nil
		}
		all := maps.Clone(labels)
		maps.Copy(all, info.Labels)
		info.Labels = all
		return nil
	}
}
