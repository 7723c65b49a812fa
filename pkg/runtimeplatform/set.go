package runtimeplatform

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Set holds the runtime handlers of a node. It does not change after [New] and
// is safe for concurrent use.
type Set struct {
	defaultHandler string
	runtimes       map[string]Runtime // by handler
	sandboxes      map[string]Runtime // by handler
	byTarget       map[Target]Runtime
	names          []string            // of all handlers, sorted
	handlers       map[Target][]string // sorted
	targets        []Target
	snapshotters   []string
}

// New resolves the handlers of a node. The first one that cannot be accepted is
// reported as a [*ConfigError].
func New(defaultHandler string, handlers []Handler, host Host) (*Set, error) {
	host = host.withDefaults()

	s := &Set{
		defaultHandler: defaultHandler,
		runtimes:       make(map[string]Runtime, len(handlers)),
		sandboxes:      make(map[string]Runtime, len(handlers)),
		byTarget:       make(map[Target]Runtime),
		handlers:       make(map[Target][]string),
	}
	for _, h := range handlers {
		rt, err := h.resolve(host)
		if err != nil {
			return nil, err
		}
		if _, ok := s.runtimes[h.Name]; ok {
			return nil, &ConfigError{Handler: h.Name, Key: keyName, Value: h.Name, Err: errors.New("another handler has this name")}
		}
		s.runtimes[h.Name] = rt
		sandbox, err := Handler{Name: h.Name, Snapshotter: h.Snapshotter}.resolve(host)
		if err != nil {
			return nil, err
		}
		s.sandboxes[h.Name] = sandbox
	}
	s.names = slices.Sorted(maps.Keys(s.runtimes))

	byDefault, ok := s.runtimes[defaultHandler]
	if !ok {
		return nil, &ConfigError{
			Handler: defaultHandler,
			Key:     keyDefaultRuntime,
			Value:   defaultHandler,
			Err:     fmt.Errorf("no such runtime handler: this node has %s", quoted(s.names)),
		}
	}

	snapshotters := make(map[string]struct{})
	for _, name := range s.names {
		target := s.runtimes[name].Target
		s.handlers[target] = append(s.handlers[target], name)
		snapshotters[target.Snapshotter] = struct{}{}
	}
	// The default handler's runtime stands for its target, and a handler's
	// before what only a sandbox needs.
	for _, rt := range slices.Concat([]Runtime{byDefault}, values(s.names, s.runtimes), values(s.names, s.sandboxes)) {
		if _, ok := s.byTarget[rt.Target]; !ok {
			s.byTarget[rt.Target] = rt
		}
	}
	s.targets = firstThenSorted(byDefault.Target, maps.Keys(s.byTarget), compareTargets)
	s.snapshotters = firstThenSorted(byDefault.Target.Snapshotter, maps.Keys(snapshotters), strings.Compare)
	return s, nil
}

// Lookup returns the runtime of a handler, that of the default one if handler
// is empty. One that is not configured is an [*UnknownHandlerError].
func (s *Set) Lookup(handler string) (Runtime, error) {
	if handler == "" {
		return s.Default(), nil
	}
	rt, ok := s.runtimes[handler]
	if !ok {
		return Runtime{}, &UnknownHandlerError{Handler: handler, Known: slices.Clone(s.names)}
	}
	return rt.clone(), nil
}

// Sandbox returns what the sandbox (pause) image of a handler's pods is made
// ready for: the node's own platform in the handler's snapshotter. The image is
// configuration of the node and not part of a pod, so the handler's platform
// says nothing about it. The errors are those of [Set.Lookup].
func (s *Set) Sandbox(handler string) (Runtime, error) {
	rt, err := s.Lookup(handler)
	if err != nil {
		return Runtime{}, err
	}
	return s.sandboxes[rt.Handler].clone(), nil
}

// Default returns the runtime of the default handler.
func (s *Set) Default() Runtime { return s.runtimes[s.defaultHandler].clone() }

// Targets returns the distinct targets of handlers and of their sandboxes: that
// of the default handler, then the others, sorted by platform and snapshotter.
func (s *Set) Targets() []Target { return slices.Clone(s.targets) }

// Snapshotters returns the distinct snapshotters: that of the default handler,
// then the others, sorted.
func (s *Set) Snapshotters() []string { return slices.Clone(s.snapshotters) }

// Handlers returns the names of the handlers that have the target, sorted. It
// is empty for a target that only sandboxes have.
func (s *Set) Handlers(t Target) []string { return slices.Clone(s.handlers[t]) }

// ForTarget returns a runtime that has the target: the default handler's, or
// else that of the first handler by name, or else that of a sandbox. All of them
// select the same manifests.
func (s *Set) ForTarget(t Target) (Runtime, bool) {
	rt, ok := s.byTarget[t]
	return rt.clone(), ok
}

func values(names []string, runtimes map[string]Runtime) []Runtime {
	all := make([]Runtime, len(names))
	for i, name := range names {
		all[i] = runtimes[name]
	}
	return all
}

// firstThenSorted returns first and then the others of keys, sorted.
func firstThenSorted[K comparable](first K, keys iter.Seq[K], compare func(a, b K) int) []K {
	others := slices.DeleteFunc(slices.SortedFunc(keys, compare), func(k K) bool { return k == first })
	return slices.Insert(others, 0, first)
}

func compareTargets(a, b Target) int {
	return cmp.Or(strings.Compare(a.Platform, b.Platform), strings.Compare(a.Snapshotter, b.Snapshotter))
}
