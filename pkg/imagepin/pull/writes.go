package pull

import (
	"context"
	"maps"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Each write of containerd's metadata is a transaction, with a sync of the disk. This file has what saves some of them in a pull.

// leased are the blobs that a lease has. A nil one is empty, and stays so.
type leased struct {
	mu    sync.Mutex
	blobs map[digest.Digest]bool
}

func (l *leased) add(d digest.Digest) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blobs == nil {
		l.blobs = make(map[digest.Digest]bool)
	}
	l.blobs[d] = true
}

func (l *leased) has(d digest.Digest) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blobs[d]
}

// distributionSource returns the labels that containerd's transfer service sets on what it has fetched for a reference, see
// [docker.AppendDistributionSourceLabel]. A blob that is written with them needs no second write.
func distributionSource(ref string) map[string]string {
	var set capturedLabels
	note, err := docker.AppendDistributionSourceLabel(&set, ref)
	if err != nil {
		return nil // the transfer service fails
	}
	if _, err := note(context.Background(), ocispec.Descriptor{}); err != nil {
		return nil
	}
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
