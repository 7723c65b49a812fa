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

// imageFsInfo reports one filesystem per snapshotter that a handler uses. The default snapshotter is first: kubelet
// reads only that one. Every filesystem has a mountpoint. containerd reports an empty one for the snapshotter of a
// handler, which breaks kubelet's eviction manager.
func (s *imageCalls) imageFsInfo(ctx context.Context, r *runtime.ImageFsInfoRequest, next func(context.Context, *runtime.ImageFsInfoRequest) (*runtime.ImageFsInfoResponse, error)) (*runtime.ImageFsInfoResponse, error) {
	resp, err := next(ctx, r)
	if err != nil {
		return nil, err
	}
	upstream := make(map[string]*runtime.FilesystemUsage)
	for _, fs := range resp.GetImageFilesystems() {
		upstream[fs.GetFsId().GetMountpoint()] = fs
	}
	resp.ImageFilesystems = nil
	for _, name := range s.Runtimes().Snapshotters() {
		root := s.Settings().SnapshotRoot(name)
		fs := upstream[root]
		if fs == nil {
			if fs, err = s.usage.of(s.namespaced(ctx), s.Snapshotter(name), name, root, s.Settings().StatsPeriod); err != nil {
				log.G(ctx).WithError(err).WithField("snapshotter", name).Warn("cannot get the usage of a snapshotter, leaving it out of ImageFsInfo")
				continue
			}
		}
		resp.ImageFilesystems = append(resp.ImageFilesystems, fs)
	}
	return resp, nil
}

// usageTimeout is how long a snapshotter may take to report its usage. kubelet calls ImageFsInfo every ten seconds, and
// needs the usage of the other snapshotters even if one hangs.
const usageTimeout = 2 * time.Second

// usageCache caches the usage of the snapshotters. A committed snapshot does not change. The others are measured again
// after each period.
type usageCache struct {
	lock      *semaphore.Weighted                   // held while a snapshotter is measured
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
					continue // removed since Walk
				}
				maps.Copy(now, known)
				u.committed[name] = now // the next call continues from here
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
