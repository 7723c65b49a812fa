package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
)

// layers is a snapshotter in memory. It has names and parents, but no files.
type layers struct {
	mu  sync.Mutex
	all map[string]snapshots.Info
}

func newLayers() *layers { return &layers{all: make(map[string]snapshots.Info)} }

func (l *layers) get(key string) (snapshots.Info, error) {
	info, ok := l.all[key]
	if !ok {
		return snapshots.Info{}, fmt.Errorf("snapshot %s: %w", key, errdefs.ErrNotFound)
	}
	return info, nil
}

func (l *layers) Stat(_ context.Context, key string) (snapshots.Info, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.get(key)
}

func (l *layers) Update(_ context.Context, info snapshots.Info, fieldpaths ...string) (snapshots.Info, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, err := l.get(info.Name)
	if err != nil {
		return snapshots.Info{}, err
	}
	old.Labels = maps.Clone(old.Labels)
	if len(fieldpaths) == 0 {
		fieldpaths = []string{"labels"}
	}
	for _, path := range fieldpaths {
		switch {
		case path == "labels":
			old.Labels = info.Labels
		case len(path) > len("labels.") && path[:len("labels.")] == "labels.":
			key := path[len("labels."):]
			if old.Labels == nil {
				old.Labels = make(map[string]string)
			}
			if v := info.Labels[key]; v != "" {
				old.Labels[key] = v
			} else {
				delete(old.Labels, key)
			}
		default:
			return snapshots.Info{}, fmt.Errorf("update %s of snapshot %s: %w", path, info.Name, errdefs.ErrInvalidArgument)
		}
	}
	old.Updated = time.Now()
	l.all[info.Name] = old
	return old, nil
}

func (l *layers) Usage(_ context.Context, key string) (snapshots.Usage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.get(key)
	return snapshots.Usage{}, err
}

func (l *layers) Mounts(_ context.Context, key string) ([]mount.Mount, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	info, err := l.get(key)
	if err == nil && info.Kind == snapshots.KindCommitted {
		err = fmt.Errorf("snapshot %s is not active: %w", key, errdefs.ErrNotFound)
	}
	return mounts(key), err
}

func mounts(key string) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: "/nowhere/" + key, Options: []string{"rbind"}}}
}

func (l *layers) Prepare(_ context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return l.make(snapshots.KindActive, key, parent, opts)
}

func (l *layers) View(_ context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return l.make(snapshots.KindView, key, parent, opts)
}

func (l *layers) make(kind snapshots.Kind, key, parent string, opts []snapshots.Opt) ([]mount.Mount, error) {
	info, err := with(snapshots.Info{Kind: kind, Name: key, Parent: parent, Created: time.Now(), Updated: time.Now()}, opts)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if parent != "" {
		p, err := l.get(parent)
		if err != nil {
			return nil, err
		}
		if p.Kind != snapshots.KindCommitted {
			return nil, fmt.Errorf("parent %s is not committed: %w", parent, errdefs.ErrInvalidArgument)
		}
	}
	if _, ok := l.all[key]; ok {
		return nil, fmt.Errorf("snapshot %s: %w", key, errdefs.ErrAlreadyExists)
	}
	l.all[key] = info
	return mounts(key), nil
}

func with(info snapshots.Info, opts []snapshots.Opt) (snapshots.Info, error) {
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return info, err
		}
	}
	return info, nil
}

func (l *layers) Commit(_ context.Context, name, key string, opts ...snapshots.Opt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	active, err := l.get(key)
	if err != nil {
		return err
	}
	if _, ok := l.all[name]; ok {
		return fmt.Errorf("snapshot %s: %w", name, errdefs.ErrAlreadyExists)
	}
	if active.Kind != snapshots.KindActive {
		return fmt.Errorf("snapshot %s is not active: %w", key, errdefs.ErrFailedPrecondition)
	}
	info, err := with(snapshots.Info{
		Kind: snapshots.KindCommitted, Name: name, Parent: active.Parent, Created: time.Now(), Updated: time.Now(),
	}, opts)
	if err != nil {
		return err
	}
	delete(l.all, key)
	l.all[name] = info
	return nil
}

func (l *layers) Remove(_ context.Context, key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.get(key); err != nil {
		return err
	}
	for _, o := range l.all {
		if o.Parent == key {
			return fmt.Errorf("snapshot %s has children: %w", key, errdefs.ErrFailedPrecondition)
		}
	}
	delete(l.all, key)
	return nil
}

func (l *layers) Walk(ctx context.Context, fn snapshots.WalkFunc, fs ...string) error {
	filter, err := filters.ParseAll(fs...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	var all []snapshots.Info
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		all = append(all, l.all[name])
	}
	l.mu.Unlock()
	for _, info := range all {
		match := filter.Match(filters.AdapterFunc(func(path []string) (string, bool) {
			switch {
			case len(path) == 1 && path[0] == "name":
				return info.Name, true
			case len(path) == 1 && path[0] == "parent":
				return info.Parent, info.Parent != ""
			case len(path) == 1 && path[0] == "kind":
				return info.Kind.String(), true
			case len(path) > 1 && path[0] == "labels":
				v, ok := info.Labels[path[1]]
				return v, ok
			}
			return "", false
		}))
		if match {
			if err := fn(ctx, info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *layers) Close() error { return nil }
