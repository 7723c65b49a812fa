// Package fleet makes locks and bundles a part of imagepin, as a plugin of containerd and for imagepin serve. It is imported for its
// effect.
package fleet

import (
	"context"

	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/containerd/containerd/v2/pkg/namespaces"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/apply"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/fleet"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// lockTopic is the topic of the event that the lock of the node has changed.
const lockTopic = "/imagepin/lock/applied"

func init() {
	registry.Register(&plugin.Registration{
		Type:   node.PartPlugin,
		ID:     config.FleetPart,
		InitFn: func(*plugin.InitContext) (any, error) { return node.OpenFleet(Open), nil },
	})
}

// Open implements [node.OpenFleet].
func Open(n node.FleetNode) node.Fleet {
	return &part{node: n, Store: applied.New(applied.Config{
		Images: n.Pins, Content: n.Content, Leases: n.Leases, Namespaces: n.Namespaces, Pins: n.PinStore,
		Retain: n.Retain, Retained: n.Retained, Sync: n.SyncNames,
	})}
}

// part implements [node.Fleet].
type part struct {
	*applied.Store
	node node.FleetNode
}

// Serve implements [node.Fleet].
func (p *part) Serve(s node.FleetService) node.Locks {
	n := p.node
	a := apply.New(apply.Config{
		State: p.Store, Images: n.Store, Puller: s.Puller, Remover: s.CRI, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshots,
		Runtimes: n.Runtimes, Settings: p.settings, Notify: p.notify, Sync: n.SyncImages,
		Containers: func(ctx context.Context) (all []apply.Container, _ error) {
			running, err := s.CRI.RunningContainers(ctx)
			for _, c := range running {
				all = append(all, apply.Container{Namespace: c.Pod.Namespace, Pod: c.Pod.Name, Name: c.Name, Ref: c.Ref, ImageID: c.ImageID})
			}
			return all, err
		},
	})
	return locks{fleet.NewServer(a), a}
}

func (p *part) settings() apply.Settings {
	now := p.node.Setup()
	s := apply.Settings{
		DiscardLayers: now.CRI.Images.DiscardUnpackedLayers, ContentDir: now.ContentDir,
		LocksDirectory: now.Settings.LocksDirectory, BundlesDirectory: now.Settings.BundlesDirectory,
	}
	if ref, err := imagepin.ParseReference(now.CRI.SandboxImage()); err == nil {
		s.SandboxImage = ref.String()
	}
	return s
}

// notify publishes an event after the lock of the node has changed.
func (p *part) notify(ctx context.Context, r apply.Result) {
	ctx = namespaces.WithNamespace(ctx, node.Namespace)
	if err := p.node.Events.Publish(ctx, lockTopic, fleet.LockEvent(r)); err != nil {
		log.G(ctx).WithError(err).Warn("failed to publish the event of a lock")
	}
}

// locks implements [node.Locks].
type locks struct {
	*fleet.Server
	applier *apply.Applier
}

// Run implements [node.Locks].
func (l locks) Run(ctx context.Context) { l.applier.Run(ctx) }

// Summary implements [node.Locks].
func (l locks) Summary() *api.LockSummary { return fleet.LockSummary(l.applier.Status()) }
