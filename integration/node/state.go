package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
)

// State is the content of containerd's metadata in all namespaces. The keys of its maps begin with the namespace:
// "k8s.io/…".
type State struct {
	Images    map[string]images.Image   // by namespace/name
	Content   map[string]content.Info   // by namespace/digest
	Ingests   map[string]content.Status // by namespace/reference
	Snapshots map[string]snapshots.Info // by namespace/snapshotter/name
	Leases    map[string]leases.Lease   // by namespace/ID
	// LeaseResources are the sorted resources of each lease, as "type id".
	LeaseResources map[string][]string
}

// Snapshotters returns the snapshotters that containerd has loaded without an error.
func (n *Node) Snapshotters(ctx context.Context) ([]string, error) {
	res, err := n.client.IntrospectionService().Plugins(ctx, "type=="+string(plugins.SnapshotPlugin))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range res.Plugins {
		if p.InitErr == nil {
			names = append(names, p.ID)
		}
	}
	return names, nil
}

// State reads the state of containerd's metadata through its API.
func (n *Node) State(ctx context.Context) (*State, error) {
	s := &State{
		Images: map[string]images.Image{}, Content: map[string]content.Info{}, Ingests: map[string]content.Status{},
		Snapshots: map[string]snapshots.Info{}, Leases: map[string]leases.Lease{}, LeaseResources: map[string][]string{},
	}
	snapshotters, err := n.Snapshotters(ctx)
	if err != nil {
		return nil, err
	}
	spaces, err := n.client.NamespaceService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, ns := range spaces {
		if err := n.readState(namespaces.WithNamespace(ctx, ns), s, ns, snapshotters); err != nil {
			return nil, fmt.Errorf("reading namespace %s: %w", ns, err)
		}
	}
	return s, nil
}

func (n *Node) readState(ctx context.Context, s *State, ns string, snapshotters []string) error {
	list, err := n.client.ImageService().List(ctx)
	if err != nil {
		return err
	}
	for _, i := range list {
		s.Images[ns+"/"+i.Name] = i
	}
	store := n.client.ContentStore()
	err = store.Walk(ctx, func(i content.Info) error {
		s.Content[ns+"/"+i.Digest.String()] = i
		return nil
	})
	if err != nil {
		return err
	}
	ingests, err := store.ListStatuses(ctx)
	if err != nil {
		return err
	}
	for _, i := range ingests {
		s.Ingests[ns+"/"+i.Ref] = i
	}
	for _, name := range snapshotters {
		err := n.client.SnapshotService(name).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			s.Snapshots[ns+"/"+name+"/"+i.Name] = i
			return nil
		})
		if err != nil {
			return fmt.Errorf("snapshotter %s: %w", name, err)
		}
	}
	manager := n.client.LeasesService()
	held, err := manager.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range held {
		resources, err := manager.ListResources(ctx, l)
		if errdefs.IsNotFound(err) {
			continue // the lease was deleted after it was listed
		}
		if err != nil {
			return err
		}
		s.Leases[ns+"/"+l.ID] = l
		for _, r := range resources {
			s.LeaseResources[ns+"/"+l.ID] = append(s.LeaseResources[ns+"/"+l.ID], r.Type+" "+r.ID)
		}
		slices.Sort(s.LeaseResources[ns+"/"+l.ID])
	}
	return nil
}

// Empty reports whether there are no images, content, ingests, snapshots and leases.
func (s *State) Empty() bool { return len(s.Lines()) == 0 }

// SnapshotsOf returns the sorted names of a snapshotter's snapshots in the CRI's namespace.
func (s *State) SnapshotsOf(snapshotter string) []string {
	var names []string
	for key := range s.Snapshots {
		if name, ok := strings.CutPrefix(key, Namespace+"/"+snapshotter+"/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Lines returns the state as sorted lines, without times.
func (s *State) Lines() []string {
	var out []string
	for key, i := range s.Images {
		out = append(out, fmt.Sprintf("image %s → %s %s%s", key, i.Target.MediaType, i.Target.Digest, labels(i.Labels)))
	}
	for key, i := range s.Content {
		out = append(out, fmt.Sprintf("content %s %d bytes%s", key, i.Size, labels(i.Labels)))
	}
	for key, i := range s.Ingests {
		out = append(out, fmt.Sprintf("ingest %s %d of %d bytes", key, i.Offset, i.Total))
	}
	for key, i := range s.Snapshots {
		out = append(out, fmt.Sprintf("snapshot %s %s parent=%s%s", key, i.Kind, i.Parent, labels(i.Labels)))
	}
	for key, l := range s.Leases {
		out = append(out, fmt.Sprintf("lease %s%s holding %v", key, labels(l.Labels), s.LeaseResources[key]))
	}
	slices.Sort(out)
	return out
}

func labels(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, " %s=%s", k, m[k])
	}
	return b.String()
}

// Resumed returns the lease resources of failed pulls ("content sha256:…", "ingests …"), which imagepin keeps for a day.
func (s *State) Resumed() map[string]bool {
	all := make(map[string]bool)
	for id, l := range s.Leases {
		if l.Labels["io.imagepin.lease"] == "resume" {
			for _, r := range s.LeaseResources[id] {
				all[r] = true
			}
		}
	}
	return all
}

// withoutResumed returns the state without what failed pulls have fetched, except what another state has too.
func (s *State) withoutResumed(resumed map[string]bool, other *State) *State {
	rest := *s
	rest.Content, rest.Ingests, rest.Leases = maps.Clone(s.Content), maps.Clone(s.Ingests), maps.Clone(s.Leases)
	maps.DeleteFunc(rest.Content, func(key string, _ content.Info) bool {
		_, both := other.Content[key]
		return !both && resumed["content "+strings.TrimPrefix(key, Namespace+"/")]
	})
	maps.DeleteFunc(rest.Ingests, func(key string, _ content.Status) bool {
		return resumed["ingests "+strings.TrimPrefix(key, Namespace+"/")]
	})
	maps.DeleteFunc(rest.Leases, func(_ string, l leases.Lease) bool { return l.Labels["io.imagepin.lease"] == "resume" })
	return &rest
}

// Diff returns the lines that only before has ("- …") and that only after has ("+ …"), without what failed pulls have fetched, which
// imagepin keeps for a day. It is empty if they are equal.
func Diff(before, after *State) string {
	resumed := before.Resumed()
	maps.Copy(resumed, after.Resumed())
	a, b := before.withoutResumed(resumed, after).Lines(), after.withoutResumed(resumed, before).Lines()
	var out strings.Builder
	for _, line := range a {
		if _, ok := slices.BinarySearch(b, line); !ok {
			fmt.Fprintf(&out, "- %s\n", line)
		}
	}
	for _, line := range b {
		if _, ok := slices.BinarySearch(a, line); !ok {
			fmt.Fprintf(&out, "+ %s\n", line)
		}
	}
	return out.String()
}

// GC runs containerd's garbage collector and waits until it is done.
func (n *Node) GC(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	manager := n.client.LeasesService()
	l, err := manager.Create(ctx, leases.WithRandomID())
	if err != nil {
		return err
	}
	return manager.Delete(ctx, l, leases.SynchronousDelete)
}
