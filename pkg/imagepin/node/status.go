package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/go-units"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
	"github.com/imagepin/imagepin/version"
)

const (
	// probeTimeout is how long a snapshotter may take to answer a status.
	probeTimeout = 2 * time.Second
	// probeName is the name of a snapshot that does not exist.
	probeName = "io.imagepin.status"
	// nearCap is the share of a cap from which a status reports it, in percent.
	nearCap = 90
	// maxPulls is how many pulls a status has.
	maxPulls = 100
)

// status returns the state of the node. It waits for nothing but the snapshotters, and for these not longer than
// probeTimeout.
func (s *Service) status(ctx context.Context) *api.StatusResponse {
	n := s.node
	now := n.active.Load()
	st := &api.StatusResponse{
		Version: version.Version, ContainerdVersion: now.ContainerdVersion, Mode: n.mode, StartedAt: timestamppb.New(s.created), At: timestamppb.Now(),
	}
	if s.cri.Retired() { // what is in memory is not recorded any more
		st.Problems = []*api.Problem{uninstalled()}
		return st
	}
	st.Index, st.Pins, st.RegistryFallbacks, st.Cluster = s.indexStatus(), n.pinStatus(now), n.metrics.Fallbacks(), now.cluster != nil
	st.Lock = s.lockStatus()
	st.DownloadRate = n.bandwidth.status()
	st.Pulls, st.MorePulls = runningPulls(s.puller.Running())
	st.Targets, st.Images = n.targetStatus(inNamespace(ctx), now)
	st.Problems = append(problems(st), clusterProblem(ctx, now.cluster)...)
	st.Problems = append(st.Problems, durableProblems(now)...)
	st.Problems = append(st.Problems, goneProblem(st.GetPins())...)
	if n := s.comparing(); n > 0 {
		st.Problems = append(st.Problems, &api.Problem{
			Message: fmt.Sprintf("keys whose files are being compared after the boot: %d", n),
			Hint:    "Calls for them wait, and go first. It ends by itself.",
		})
	}
	if n := s.unverified(); n > 0 {
		st.Problems = append(st.Problems, &api.Problem{
			Message: fmt.Sprintf("unverified keys: %d", n),
			Hint:    "After the last boot, their files could not be compared with their layers. Pods can use them. To see the reasons, run: imagepin images",
		})
	}
	for namespace, used := range n.pins.Namespaces() {
		if limit := now.Settings.MaxPinsPerNamespace; limit > 0 && used*100 >= limit*nearCap {
			st.Problems = append(st.Problems, &api.Problem{
				Message: fmt.Sprintf("namespace %q has %d of %d pins", namespace, used, limit),
				Hint:    "Remove pins that are not needed (imagepin pin ls, imagepin pin rm), or raise max_pins_per_namespace.",
			})
		}
	}
	slices.SortStableFunc(st.Problems, func(a, b *api.Problem) int { return strings.Compare(a.Message, b.Message) })
	return st
}

// unverified returns the number of keys whose files could not be compared after the boot.
func (s *Service) unverified() (n int) {
	for _, img := range s.node.store.Images() {
		for _, e := range img.Entries {
			if s.reconciler.Unverified(e) != "" {
				n++
			}
		}
	}
	return n
}

// comparing returns the number of keys that calls wait for, because their files are being compared.
func (s *Service) comparing() (n int) {
	for _, d := range s.node.store.Damaged() {
		if d.Waiting {
			n++
		}
	}
	return n
}

// runningPulls returns the first maxPulls of all pulls, and the number of the rest.
func runningPulls(all []pull.Running) (first []*api.RunningPull, more int64) {
	shown := all[:min(len(all), maxPulls)]
	for _, p := range shown {
		first = append(first, &api.RunningPull{
			Ref: p.Ref, Target: &api.Target{Platform: p.Target.Platform, Snapshotter: p.Target.Snapshotter},
			Since: timestamppb.New(p.Since), Received: p.Received, Total: p.Total,
			Rate: p.Rate, LeftSeconds: int64(p.Left / time.Second), WaitsFor: string(p.Waits),
		})
	}
	return first, int64(len(all) - len(shown))
}

func (s *Service) indexStatus() *api.IndexStatus {
	st := &api.IndexStatus{
		PendingRepairs: int64(s.reconciler.PendingRepairs()), Dropped: s.reconciler.Dropped(),
	}
	for _, d := range s.node.store.Damaged() {
		if !d.Waiting {
			st.Damaged++
		}
	}
	for _, img := range s.node.store.Images() {
		for _, e := range img.Entries {
			if s.node.store.IsUnused(e) {
				st.Unused++
			}
		}
	}
	select {
	case <-s.Ready():
		st.Ready = true
	default:
	}
	if last, ok := s.reconciler.LastListed(); ok {
		st.ListedAt, st.TookMs, st.Lost = timestamppb.New(last.At), last.Took.Milliseconds(), int64(last.Lost)
	}
	return st
}

func (n *Node) pinStatus(now *active) *api.PinStatus {
	st := &api.PinStatus{RetainedBytes: n.retainer.Bytes(), MaxRetainedBytes: now.Settings.MaxRetainedBytes}
	for _, p := range n.pins.List() {
		st.Pins++
		if p.Drift != nil {
			st.Drifted++
		}
		if p.Provisional != nil {
			st.Provisional++
		}
	}
	n.lookupStatus(now, st)
	return st
}

// targetStatus returns the targets that have a runtime handler or an image, and the number of image IDs.
func (n *Node) targetStatus(ctx context.Context, now *active) (targets []*api.TargetStatus, images int64) {
	runtimes, count := now.runtimes, make(map[runtimeplatform.Target]int64)
	for _, t := range runtimes.Targets() {
		count[t] = 0
	}
	for _, img := range n.store.Images() {
		images++
		has := make(map[runtimeplatform.Target]bool, 1)
		for _, e := range img.Entries {
			if !has[e.Target] {
				has[e.Target] = true
				count[e.Target]++
			}
		}
	}
	silent := n.silentSnapshotters(ctx, count)
	for t, images := range count {
		targets = append(targets, &api.TargetStatus{
			Target: &api.Target{Platform: t.Platform, Snapshotter: t.Snapshotter}, Handlers: runtimes.Handlers(t),
			Default: t == runtimes.Default().Target, Images: images, Error: silent[t.Snapshotter],
			GuestPull: slices.DeleteFunc(runtimes.Handlers(t), func(name string) bool { return !now.Settings.GuestPull[name] }),
		})
	}
	slices.SortFunc(targets, func(a, b *api.TargetStatus) int { return strings.Compare(a.String(), b.String()) })
	return targets, images
}

// silentSnapshotters returns why the snapshotters of targets do not answer, by name. It asks all of them at the same time. A
// snapshotter may ignore its context, so the next status waits for the same answer.
func (n *Node) silentSnapshotters(ctx context.Context, targets map[runtimeplatform.Target]int64) map[string]string {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %s", probeTimeout))
	defer cancel()
	var (
		asked  sync.WaitGroup
		mu     sync.Mutex
		silent = make(map[string]string)
	)
	names := make(map[string]bool)
	for t := range targets {
		names[t.Snapshotter] = true
	}
	for name := range names {
		asked.Go(func() {
			_, err := n.probes.DoDetached(ctx, name, func(ctx context.Context) (struct{}, error) { return struct{}{}, n.probe(ctx, name) })
			if err != nil {
				mu.Lock()
				silent[name] = err.Error()
				mu.Unlock()
			}
		})
	}
	asked.Wait()
	return silent
}

// probe returns nil if a snapshotter answers.
func (n *Node) probe(ctx context.Context, name string) error {
	snapshotter := n.containerd.Snapshots(name)
	if snapshotter == nil {
		return errors.New("it is not loaded")
	}
	if _, err := snapshotter.Stat(ctx, probeName); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// uninstalled is the problem of a node whose records were removed.
func uninstalled() *api.Problem {
	return &api.Problem{
		Message: "imagepin is uninstalled: all calls are forwarded to containerd's own CRI",
		Hint:    "Start stock containerd, on its own socket, or restart this containerd to use imagepin again.",
	}
}

// clusterProblem returns why the pins of a cluster cannot be used, as far as it is known. c may be nil.
func clusterProblem(ctx context.Context, c Cluster) []*api.Problem {
	if c == nil {
		return nil
	}
	err := c.Problem(ctx)
	if err == nil {
		return nil
	}
	message, hint, _ := strings.Cut(err.Error(), "\n")
	return []*api.Problem{{Message: "the pins of the cluster cannot be used: " + message, Hint: hint}}
}

// problems returns what needs an operator.
func problems(st *api.StatusResponse) (all []*api.Problem) {
	add := func(hint, format string, args ...any) {
		all = append(all, &api.Problem{Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	if !st.GetIndex().GetReady() {
		add("Calls wait until it is built. If this takes long, see the log of containerd.", "the index is not built")
	}
	if n := st.GetIndex().GetDamaged(); n > 0 {
		add("Pods cannot use them. The node repairs them in the background. To see the reasons, run: imagepin check", "damaged keys: %d", n)
	} else if n := st.GetIndex().GetPendingRepairs(); n > 0 {
		add("Repairs run in the background. To see the reasons, run: imagepin check", "recorded images that are not ready: %d", n)
	}
	seen := make(map[string]bool)
	for _, t := range st.GetTargets() {
		if name := t.GetTarget().GetSnapshotter(); t.GetError() != "" && !seen[name] {
			seen[name] = true
			add("Pods of its handlers cannot start. Restart the snapshotter, and see its log.", "snapshotter %s does not answer: %s", name, t.GetError())
		}
	}
	if p := st.GetPins(); p.GetMaxRetainedBytes() > 0 && p.GetRetainedBytes() >= p.GetMaxRetainedBytes()/100*nearCap {
		add("Remove pins that retain content (imagepin pin ls, imagepin pin rm), or raise max_retained_bytes.",
			"pins retain %s of %s", units.BytesSize(float64(p.GetRetainedBytes())), units.BytesSize(float64(p.GetMaxRetainedBytes())))
	}
	if l := st.GetLock(); l.GetFailed() != "" {
		message, _, _ := strings.Cut(l.GetFailed(), "\n") // lock status has its hint
		add("To see the lock of this node, run: imagepin lock status", "the last lock was not applied: %s", message)
	}
	if l := st.GetLock(); l.GetReady() < l.GetImages() {
		add("They are made ready in the background. To list them, run: imagepin lock status", "images of the lock that are not ready: %d", l.GetImages()-l.GetReady())
	}
	if n := st.GetLock().GetDriftedContainers(); n > 0 {
		add("Restart their pods. To list them, run: imagepin lock status", "containers that run another digest than the lock: %d", n)
	}
	if n := st.GetPins().GetProvisional(); n > 0 {
		add("They are claimed when the API server answers. See the metric imagepin_claims_total.", "pins that are not claimed in the Kubernetes API: %d", n)
	}
	return all
}

// durableProblems returns why images may be lost when the power is cut although they are made durable.
func durableProblems(now *active) (all []*api.Problem) {
	if now.syncer == nil {
		return nil
	}
	if w := now.CRI.Unsynced(now.Settings); w != "" {
		all = append(all, &api.Problem{Message: w, Hint: "Remove no_sync from the configuration of containerd, and restart it."})
	}
	if !durable.ReportsErrors() {
		all = append(all, &api.Problem{
			Message: "the kernel does not report that a disk has failed while images are made durable",
			Hint:    "Linux 5.8 and later do. Before, see the log of the kernel.",
		})
	}
	return all
}
