package cri

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/semaphore"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageFsInfo reports one filesystem per snapshotter of a handler, the default
// one first, which is the only one kubelet reads. Each has a mountpoint: an
// empty one, as containerd gives for a snapshotter of a handler, breaks
// kubelet's eviction manager.
func (s *imageCalls) imageFsInfo(ctx context.Context, r *runtime.ImageFsInfoRequest, next func(context.Context, *runtime.ImageFsInfoRequest) (*runtime.ImageFsInfoResponse, error)) (*runtime.ImageFsInfoResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	behind := make(map[string]*runtime.FilesystemUsage)
	for _, fs := range resp.GetImageFilesystems() {
		behind[fs.GetFsId().GetMountpoint()] = fs
	}
	resp.ImageFilesystems = nil
	for _, name := range s.Runtimes().Snapshotters() {
		root := s.Settings().SnapshotRoot(name)
		fs := behind[root]
		if fs == nil {
			if fs, err = s.usage.of(s.namespaced(ctx), s.Snapshotter(name), name, root, s.Settings().StatsPeriod); err != nil {
				log.G(ctx).WithError(err).WithField("snapshotter", name).Warn("cannot tell how much it uses")
				continue
			}
		}
		resp.ImageFilesystems = append(resp.ImageFilesystems, fs)
	}
	return resp, nil
}

// usageTimeout is how long a snapshotter may take to say what it uses. kubelet
// asks every ten seconds, and needs the answer of the others where one hangs.
const usageTimeout = 2 * time.Second

// usageCache remembers how much the snapshotters use. A committed snapshot does
// not change; the others are looked at again once the period is over.
type usageCache struct {
	lock      *semaphore.Weighted                   // held while a snapshotter is asked
	committed map[string]map[string]snapshots.Usage // snapshotter, name
	last      map[string]*runtime.FilesystemUsage
}

func newUsageCache() *usageCache { return &usageCache{lock: semaphore.NewWeighted(1)} }

func (u *usageCache) of(ctx context.Context, sn snapshots.Snapshotter, name, root string, period time.Duration) (*runtime.FilesystemUsage, error) {
	if err := u.lock.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	defer u.lock.Release(1)
	if last := u.last[name]; last != nil && time.Since(time.Unix(0, last.Timestamp)) < period {
		return last, nil
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if u.last == nil {
		u.last, u.committed = make(map[string]*runtime.FilesystemUsage), make(map[string]map[string]snapshots.Usage)
	}
	known := u.committed[name]
	now := make(map[string]snapshots.Usage)
	var total snapshots.Usage
	start := time.Now()
	var infos []snapshots.Info
	if err := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		infos = append(infos, i)
		return nil
	}); err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("walk snapshots: %w", err)
	}
	for _, i := range infos {
		size, ok := known[i.Name]
		if !ok || i.Kind != snapshots.KindCommitted {
			var err error
			if size, err = sn.Usage(ctx, i.Name); err != nil {
				if errdefs.IsNotFound(err) {
					continue // it has just gone
				}
				maps.Copy(now, known)
				u.committed[name] = now // the next call has that much less to do
				return nil, fmt.Errorf("usage of snapshot %s: %w", i.Name, err)
			}
		}
		if i.Kind == snapshots.KindCommitted {
			now[i.Name] = size
		}
		total.Add(size)
	}
	fs := &runtime.FilesystemUsage{
		Timestamp:  start.UnixNano(),
		FsId:       &runtime.FilesystemIdentifier{Mountpoint: root},
		UsedBytes:  &runtime.UInt64Value{Value: uint64(total.Size)},
		InodesUsed: &runtime.UInt64Value{Value: uint64(total.Inodes)},
	}
	u.last[name], u.committed[name] = fs, now
	return fs, nil
}
