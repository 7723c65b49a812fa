package power

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"

	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// operations returns the operations of a round.
func (f *fleet) operations() []operation {
	return []operation{f.pull(), f.download(), f.adopt(), f.apply(), f.rollback(), f.pin(), f.repair(), f.uninstall()}
}

func (f *fleet) pull() operation {
	steps := []step{f.pullOf(f.large, ""), f.pullOf(f.other, testkit.Second), f.pullOf(f.other, "")}
	return operation{name: "pull", steps: steps, pulls: []pulled{{f.large, ""}}, during: 2, after: 2}
}

func (f *fleet) pullOf(ref, handler string) step {
	return step{
		do:   func(w *working) error { _, err := w.Pull(w.Ctx, ref, handler); return err },
		done: func(p *promise) { p.images[pulled{ref, handler}] = f.current[ref] },
	}
}

// download pulls two images from a registry that stops in the middle of a layer. Power is cut when the node has unpacked all other
// layers of the first one, which nothing has synced, and when it has a half of the layer of the second one.
func (f *fleet) download() operation {
	const half = 2 << 20 // bytes
	large, single := f.current[f.large], f.current[f.single]
	last := len(large.Snapshots) - 1
	unpacked := func(ctx context.Context, w *working) (bool, error) {
		_, err := w.Client().SnapshotService("overlayfs").Stat(testkit.NSContext(ctx), large.Snapshots[last-1].Name)
		return err == nil, nil // any error is that there is none yet
	}
	arrived := func(ctx context.Context, w *working) (bool, error) {
		statuses, err := w.Client().ContentStore().ListStatuses(testkit.NSContext(ctx))
		return slices.ContainsFunc(statuses, func(s content.Status) bool {
			return strings.Contains(s.Ref, single.Blobs[0]) && s.Offset >= half/2
		}), err
	}
	steps := []step{
		f.stopping(f.pullOf(f.large, ""), large.Blobs[last], 1, "with all layers but one", unpacked),
		f.stopping(f.pullOf(f.single, ""), single.Blobs[0], half, "in the middle of a layer", arrived),
	}
	return operation{name: "download", steps: steps, pulls: []pulled{{f.large, ""}, {f.single, ""}}}
}

// stopping returns a step whose registry stops after some bytes of a layer. Power is cut when a condition holds. Then the registry
// goes on.
func (f *fleet) stopping(s step, layer string, after int64, when string, condition func(context.Context, *working) (bool, error)) step {
	pull := s.do
	s.do = func(w *working) error {
		goOn := make(chan struct{})
		ofLayer := func(q registry.Request) bool { return q.Reference == layer }
		f.reg.SetFault(registry.FaultIf(registry.Fault{Hang: goOn, After: after}, registry.Is(http.MethodGet, registry.Blob), ofLayer))
		defer f.reg.SetFault(nil)
		result := make(chan error, 1)
		go func() { result <- pull(w) }()
		testkit.Eventually(w.T, "the node is "+when, func(ctx context.Context) (bool, error) { return condition(ctx, w) })
		w.cutNow(when)
		close(goOn)
		return <-result
	}
	return s
}

// adopt pulls an image with another tool, which syncs nothing. The image need not be there after the boot. The lease of the tool keeps
// what it has unpacked.
func (f *fleet) adopt() operation {
	of := func(ref, handler string) step {
		args := []string{"images", "pull", "--plain-http", "--snapshotter", f.snapshotters[handler], ref}
		if f.snapshotters[handler] == "native" { // containerd's transfer service does not unpack there
			args = append(args, "--local")
		}
		return step{do: func(w *working) error {
			_, err := w.Ctr(w.Ctx, args...)
			return err
		}}
	}
	large := of(f.large, "")
	pull := large.do
	large.do = func(w *working) error {
		if err := pull(w); err != nil {
			return err
		}
		testkit.WaitForImage(w.T, w.Node, f.large)
		return nil
	}
	pulls := []pulled{{f.large, ""}, {f.other, testkit.Second}}
	return operation{name: "ctr images pull", steps: []step{large, of(f.other, testkit.Second)}, pulls: pulls, during: 3, after: 1}
}

// apply applies the bundle of the second lock over the first one.
func (f *fleet) apply() operation {
	do := func(w *working) error { return w.command("apply", f.bundles[1]) }
	return operation{name: "apply", steps: []step{switchLock(do, f.locks[1])}, during: 3, after: 1}
}

// rollback goes back from the second lock to the first one.
func (f *fleet) rollback() operation {
	begin := func(m *machine, p *promise) {
		m.must(m.command("apply", f.bundles[1]))
		p.locks = []string{f.locks[1]}
	}
	do := func(w *working) error { return w.command("rollback") }
	return operation{name: "rollback", begin: begin, steps: []step{switchLock(do, f.locks[0])}, during: 2, after: 1}
}

func switchLock(do func(w *working) error, to string) step {
	return step{
		do:   do,
		may:  func(p *promise) { p.locks = append(p.locks, to) },
		done: func(p *promise) { p.locks = []string{to} },
	}
}

// pin moves a pin, and makes another one.
func (f *fleet) pin() operation {
	of := func(ref, d string) step {
		return step{
			do: func(w *working) error { return w.command("pin", "set", ref, d) },
			may: func(p *promise) {
				if len(p.pins[ref]) == 0 {
					p.pins[ref] = []string{""}
				}
				p.pins[ref] = append(slices.Clone(p.pins[ref]), d)
			},
			done: func(p *promise) { p.pins[ref] = []string{d} },
		}
	}
	return operation{name: "pin set", steps: []step{of(f.pinned, f.versions[f.pinned][1]), of(f.kept, f.versions[f.kept][0])}, during: 2, after: 1}
}

// repair unpacks an image again whose snapshot another tool has removed.
func (f *fleet) repair() operation {
	key := pulled{f.kept, ""}
	begin := func(m *machine, p *promise) {
		service := m.Client().SnapshotService(f.snapshotters[key.handler])
		all := f.current[f.kept].Snapshots
		m.must(service.Remove(testkit.NSContext(m.Ctx), all[len(all)-1].Name))
		delete(p.images, key)
	}
	return operation{name: "check --repair", begin: begin, after: 1, steps: []step{{
		do:   func(w *working) error { return w.command("check", "--deep", "--repair") },
		done: func(p *promise) { p.images[key] = f.current[f.kept] },
	}}}
}

// uninstall removes what imagepin has written. The images stay, and imagepin adopts them at the next start.
func (f *fleet) uninstall() operation {
	return operation{name: "uninstall", during: 1, after: 1, steps: []step{{
		do: func(w *working) error { return w.command("uninstall", "--yes") },
		may: func(p *promise) {
			p.locks = append(p.locks, "")
			for ref := range p.pins {
				p.pins[ref] = append(slices.Clone(p.pins[ref]), "")
			}
		},
		done: func(p *promise) {
			p.locks = []string{""}
			for ref := range p.pins {
				p.pins[ref] = []string{""}
			}
		},
	}}}
}

// must ends the test if err is not nil.
func (m *machine) must(err error) {
	m.T.Helper()
	if err != nil {
		m.T.Fatal(fmt.Errorf("before the cut: %w", err))
	}
}
