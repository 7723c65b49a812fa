package resolve

import (
	"context"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
)

// askedHosts are the hosts of a registry that resolve a reference. containerd's resolver asks only those of them that have
// the capability resolve for a tag.
type askedHosts int

const (
	allHosts     askedHosts = iota
	trustedHosts            // those with the capability resolve
	onlyOrigin              // the origin
)

// incapableHint is what to do if none of the hosts has the capabilities for a request.
func (a askedHosts) incapableHint() string {
	if a == onlyOrigin {
		return "Add the capabilities \"pull\" and \"resolve\" to the server in the registry's hosts.toml, because resolve_at is \"origin\"."
	}
	return "Add the capabilities \"pull\" and \"resolve\" to a host in the registry's hosts.toml."
}

// resolverFor returns the resolver that asks these hosts.
func (s *Session) resolverFor(asked askedHosts) remotes.Resolver {
	switch asked {
	case trustedHosts:
		return s.trusted
	case onlyOrigin:
		return s.origin
	}
	return s.resolver
}

// ResolveAtOrigin is [Resolver.Resolve] at the origin of the registry only: the server in its hosts.toml, which by default is
// the registry itself. It does not ask mirrors, also if they have the capability resolve. The session fetches from all hosts.
func (r *Resolver) ResolveAtOrigin(ctx context.Context, ref reference.Named, c Credential) (Resolved, error) {
	return r.ask(ctx, ref, c, onlyOrigin, r.resolves.Do)
}

// ResolveNow is [Resolver.Resolve], or [Resolver.ResolveAtOrigin], for what the registry has at the time of the call: it is not merged
// with a call that began before, whose answer can be older.
func (r *Resolver) ResolveNow(ctx context.Context, ref reference.Named, c Credential, origin bool) (Resolved, error) {
	if origin {
		return r.ask(ctx, ref, c, onlyOrigin, r.resolves.DoNew)
	}
	return r.ask(ctx, ref, c, allHosts, r.resolves.DoNew)
}

// origin returns the origin of the hosts of a registry. It is the last one, unless the older configuration of mirrors has the
// registry itself before.
func (h *hosts) origin(registry string, all []docker.RegistryHost) []docker.RegistryHost {
	if len(all) == 0 {
		return nil
	}
	if h.useMirrors() {
		if self, err := docker.DefaultHost(registry); err == nil {
			if i := slices.IndexFunc(all, func(h docker.RegistryHost) bool { return h.Host == self }); i >= 0 {
				return all[i : i+1]
			}
		}
	}
	return all[len(all)-1:]
}
