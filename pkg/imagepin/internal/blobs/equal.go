package blobs

import (
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
)

// WithoutEqualUpdates returns a content store whose Update writes nothing if the labels to set have their values already: each write
// is a transaction of the metadata, with a sync of the disk. A pull sets the labels of all blobs, also of those that other images have.
func WithoutEqualUpdates(store content.Store) content.Store { return withoutEqualUpdates{store} }

type withoutEqualUpdates struct{ content.Store }

var _ Checker = withoutEqualUpdates{}

// Check implements [Checker], as the store does.
func (s withoutEqualUpdates) Check(ctx context.Context, d digest.Digest, size int64) error {
	return Check(ctx, s.Store, d, size)
}

// Update implements content.Manager.
func (s withoutEqualUpdates) Update(ctx context.Context, info content.Info, fields ...string) (content.Info, error) {
	if onlySetsLabels(info, fields) {
		if now, err := s.Info(ctx, info.Digest); err == nil && hasLabels(now, fields, info) {
			return now, nil
		}
	}
	return s.Store.Update(ctx, info, fields...)
}

// labelField is the prefix of the field of a label, before its name.
const labelField = "labels."

// onlySetsLabels reports whether an update changes nothing but labels with a value. An empty value removes a label.
func onlySetsLabels(info content.Info, fields []string) bool {
	for _, f := range fields {
		name, ok := strings.CutPrefix(f, labelField)
		if !ok || info.Labels[name] == "" {
			return false
		}
	}
	return len(fields) > 0
}

// hasLabels reports whether a blob has the labels of fields as wanted.
func hasLabels(now content.Info, fields []string, want content.Info) bool {
	for _, f := range fields {
		name := strings.TrimPrefix(f, labelField)
		if now.Labels[name] != want.Labels[name] {
			return false
		}
	}
	return true
}
