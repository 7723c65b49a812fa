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

// Set has the runtime handlers of a node. It is immutable and safe for concurrent use.
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

// New resolves the handlers of a node. The error for the first invalid handler is a [*ConfigError].
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
			return nil, &ConfigError{Handler: h.Name, Key: keyName, Value: h.Name, Err: errors.New("duplicate handler name")}
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
			Err:     fmt.Errorf("unknown runtime handler: this node has %s", quoted(s.names)),
		}
	}

	snapshotters := make(map[string]struct{})
	for _, name := range s.names {
		target := s.runtimes[name].Target
		s.handlers[target] = append(s.handlers[target], name)
		snapshotters[target.Snapshotter] = struct{}{}
	}
	// byTarget prefers the default handler's runtime, and a handler's runtime over a sandbox's.
	for _, rt := range slices.Concat([]Runtime{byDefault}, values(s.names, s.runtimes), values(s.names, s.sandboxes)) {
		if _, ok := s.byTarget[rt.Target]; !ok {
			s.byTarget[rt.Target] = rt
		}
	}
	s.targets = firstThenSorted(byDefault.Target, maps.Keys(s.byTarget), compareTargets)
	s.snapshotters = firstThenSorted(byDefault.Target.Snapshotter, maps.Keys(snapshotters), strings.Compare)
	return s, nil
}

// Lookup returns the runtime of a handler. An empty name means the default handler. The error for a handler that is not
// configured is an [*UnknownHandlerError].
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

// Sandbox returns the runtime for the sandbox (pause) image of a handler's pods: the node's own platform in the
// handler's snapshotter. The handler's platform does not apply, because the image is configured for the node and is not
// part of a pod. It fails as [Set.Lookup] does.
func (s *Set) Sandbox(handler string) (Runtime, error) {
	rt, err := s.Lookup(handler)
	if err != nil {
		return Runtime{}, err
	}
	return s.sandboxes[rt.Handler].clone(), nil
}

// Default returns the runtime of the default handler.
func (s *Set) Default() Runtime { return s.runtimes[s.defaultHandler].clone() }

// Targets returns the distinct targets of handlers and their sandboxes: the default handler's target first, and then
// the others, sorted by platform and snapshotter.
func (s *Set) Targets() []Target { return slices.Clone(s.targets) }

// Snapshotters returns the distinct snapshotters: the default handler's first, and then the others, sorted.
func (s *Set) Snapshotters() []string { return slices.Clone(s.snapshotters) }

// Handlers returns the names of the handlers with a target, sorted. It is empty for a target that only sandboxes have.
func (s *Set) Handlers(t Target) []string { return slices.Clone(s.handlers[t]) }

// ForTarget returns a runtime with a target: the default handler's, or that of the first handler by name, or that of a
// sandbox. All of them select the same manifests.
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

// firstThenSorted returns first, followed by the other keys, sorted.
func firstThenSorted[K comparable](first K, keys iter.Seq[K], compare func(a, b K) int) []K {
	others := slices.DeleteFunc(slices.SortedFunc(keys, compare), func(k K) bool { return k == first })
	return slices.Insert(others, 0, first)
}

func compareTargets(a, b Target) int {
	return cmp.Or(strings.Compare(a.Platform, b.Platform), strings.Compare(a.Snapshotter, b.Snapshotter))
}
