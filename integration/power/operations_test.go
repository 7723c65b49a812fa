package power

import (
	"fmt"
	"slices"

	"github.com/imagepin/imagepin/integration/testkit"
)

// operations returns the operations of a round.
func (f *fleet) operations() []operation {
	return []operation{f.pull(), f.apply(), f.rollback(), f.pin(), f.repair(), f.uninstall()}
}

func (f *fleet) pull() operation {
	of := func(ref, handler string) step {
		return step{
			do:   func(m *machine) error { _, err := m.Pull(m.Ctx, ref, handler); return err },
			done: func(p *promise) { p.images[pulled{ref, handler}] = f.current[ref] },
		}
	}
	return operation{name: "pull", steps: []step{of(f.large, ""), of(f.other, testkit.Second), of(f.other, "")}, during: 4, after: 2}
}

// apply applies the bundle of the second lock over the first one.
func (f *fleet) apply() operation {
	do := func(m *machine) error { return m.command("apply", f.bundles[1]) }
	return operation{name: "apply", steps: []step{switchLock(do, f.locks[1])}, during: 4, after: 1}
}

// rollback goes back from the second lock to the first one.
func (f *fleet) rollback() operation {
	begin := func(m *machine, p *promise) {
		m.must(m.command("apply", f.bundles[1]))
		p.locks = []string{f.locks[1]}
	}
	do := func(m *machine) error { return m.command("rollback") }
	return operation{name: "rollback", begin: begin, steps: []step{switchLock(do, f.locks[0])}, during: 1, after: 1}
}

func switchLock(do func(m *machine) error, to string) step {
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
			do: func(m *machine) error { return m.command("pin", "set", ref, d) },
			may: func(p *promise) {
				if len(p.pins[ref]) == 0 {
					p.pins[ref] = []string{""}
				}
				p.pins[ref] = append(slices.Clone(p.pins[ref]), d)
			},
			done: func(p *promise) { p.pins[ref] = []string{d} },
		}
	}
	return operation{name: "pin set", steps: []step{of(f.pinned, f.versions[f.pinned][1]), of(f.kept, f.versions[f.kept][0])}, during: 1, after: 1}
}

// repair unpacks an image again whose snapshots another tool has removed.
func (f *fleet) repair() operation {
	key := pulled{f.kept, ""}
	begin := func(m *machine, p *promise) {
		service := m.Client().SnapshotService(snapshotters[key.handler])
		for _, s := range slices.Backward(f.current[f.kept].Snapshots[1:]) { // other images share the lowest one
			m.must(service.Remove(testkit.NSContext(m.Ctx), s.Name))
		}
		delete(p.images, key)
	}
	return operation{name: "check --repair", begin: begin, during: 2, after: 1, steps: []step{{
		do:   func(m *machine) error { return m.command("check", "--deep", "--repair") },
		done: func(p *promise) { p.images[key] = f.current[f.kept] },
	}}}
}

// uninstall removes what imagepin has written. The images stay, and imagepin adopts them at the next start.
func (f *fleet) uninstall() operation {
	return operation{name: "uninstall", during: 1, after: 1, steps: []step{{
		do: func(m *machine) error { return m.command("uninstall", "--yes") },
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
