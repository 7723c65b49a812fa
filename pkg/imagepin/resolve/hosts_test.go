package resolve

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// resolveOnce resolves ref and fails the test on an error.
func resolveOnce(t *testing.T, r *Resolver) Resolved {
	t.Helper()
	resolved, err := r.Resolve(quiet(t), named(t, ref), Credential{})
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

func hostOf(r *registry) string { return strings.TrimPrefix(r.URL, "http://") }

func TestSeveralConfigPaths(t *testing.T) {
	inSecond := newRegistry(t)
	first, second := t.TempDir(), t.TempDir()
	writeHosts(t, second, server(inSecond))
	r := withConfig(t, RegistryConfig{ConfigPath: []string{first, second}})
	if got := resolveOnce(t, r); got.Host != hostOf(inSecond) || got.Root.Digest != inSecond.root.Digest {
		t.Errorf("%s resolved %s, want the host in the second root", got.Host, got.Root.Digest)
	}

	// An earlier root takes precedence as soon as it has the registry.
	inFirst := newRegistry(t)
	writeHosts(t, first, server(inFirst))
	if got := resolveOnce(t, r); got.Host != hostOf(inFirst) {
		t.Errorf("resolved by %s, want the host in the first root", got.Host)
	}
}

func TestHostsFileChanges(t *testing.T) {
	a, b := newRegistry(t), newRegistry(t)
	root := t.TempDir()
	writeHosts(t, root, server(a))
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}})
	resolveOnce(t, r)
	writeHosts(t, root, "# moved\n"+server(b))
	if got := resolveOnce(t, r); got.Host != hostOf(b) {
		t.Errorf("resolved by %s after the file changed, want %s", got.Host, hostOf(b))
	}
	if err := os.WriteFile(filepath.Join(root, name, "hosts.toml"), []byte("not = [toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resolve(quiet(t), named(t, ref), Credential{}); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("invalid file: got %v, want an error with the registry", err)
	}
	writeHosts(t, root, server(a))
	resolveOnce(t, r)
}

// get returns what is known of a registry, or nil. The registry counts as used then.
func (h *hosts) get(registry string) *knownHosts {
	known, _ := h.known.Get(registry)
	k, _ := known.(*knownHosts)
	return k
}

// TestHostsExpire checks that hosts are read again after some time, because files that hosts.toml references can
// change.
func TestHostsExpire(t *testing.T) {
	a := newRegistry(t)
	root := t.TempDir()
	writeHosts(t, root, server(a))
	h := newHosts(RegistryConfig{ConfigPath: []string{root}}, 0)
	lookup := func() *http.Client {
		t.Helper()
		found, err := h.lookup(t.Context(), name)
		if err != nil || len(found) != 1 {
			t.Fatalf("got hosts %v, %v, want 1", found, err)
		}
		return found[0].Client
	}
	first := lookup()
	if lookup() != first {
		t.Error("a lookup created a new client")
	}
	h.get(name).read = time.Now().Add(-hostsMaxAge)
	if lookup() == first {
		t.Error("an expired configuration was not read again")
	}
}

// TestKnownHostsAreBounded checks that the number of known registries is bounded, and that registries in use stay
// known.
func TestKnownHostsAreBounded(t *testing.T) {
	a := newRegistry(t)
	r := newResolver(t, server(a))
	first := resolveOnce(t, r)
	client := r.hosts.get(name).hosts[0].Client
	for n := range 10 * maxKnownHosts {
		if _, err := r.Resolve(quiet(t), named(t, fmt.Sprintf("127.%d.%d.1:1/app", n/250, n%250)), Credential{}); err == nil {
			t.Fatal("got no error for a registry that does not exist")
		}
		if n%50 == 0 {
			resolveOnce(t, r)
		}
		if known := r.hosts.known.Len(); known > maxKnownHosts {
			t.Fatalf("got %d known registries after %d lookups, want at most %d", known, n, maxKnownHosts)
		}
	}
	if r.hosts.get(name).hosts[0].Client != client || a.tcp() != 1 {
		t.Errorf("the registry in use was removed, or got %d connections, want 1", a.tcp())
	}
	// A removed registry is read again.
	for n := range maxKnownHosts {
		if _, err := r.hosts.lookup(t.Context(), fmt.Sprintf("other-%d.invalid", n)); err != nil {
			t.Fatal(err)
		}
	}
	if r.hosts.get(name) != nil {
		t.Error("the least recently used registry was not removed")
	}
	f, err := first.Session.Fetcher(quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(quiet(t), f, a.image.Layer); err != nil {
		t.Errorf("session with a removed registry: %v", err)
	}
	resolveOnce(t, r)
}

func TestNoConfiguration(t *testing.T) {
	h := newHosts(RegistryConfig{}, 0)
	found, err := h.lookup(t.Context(), "docker.io")
	if err != nil || len(found) != 1 || found[0].Host != "registry-1.docker.io" || found[0].Scheme != "https" {
		t.Errorf("got hosts %+v, %v, want https://registry-1.docker.io", found, err)
	}
}

func TestMirrorsConfiguration(t *testing.T) {
	h := newHosts(RegistryConfig{Mirrors: map[string][]string{
		"docker.io":        {"https://mirror.example", "http://mirror.example:5000/v2/proxy", "localhost:5000"},
		"registry.example": {"https://other.example/path", "https://registry.example"},
		"*":                {"https://all.example"},
	}}, 0)
	const all = docker.HostCapabilityResolve | docker.HostCapabilityPull | docker.HostCapabilityReferrers
	for registry, want := range map[string][]string{
		"docker.io":        {"https://mirror.example/v2", "http://mirror.example:5000/v2/proxy", "http://localhost:5000/v2", "https://registry-1.docker.io/v2"},
		"registry.example": {"https://other.example/path", "https://registry.example/v2"},
		"quay.example":     {"https://all.example/v2", "https://quay.example/v2"},
		"localhost:5001":   {"https://all.example/v2", "http://localhost:5001/v2"},
	} {
		found, err := h.lookup(t.Context(), registry)
		if err != nil {
			t.Errorf("%s: %v", registry, err)
			continue
		}
		var got []string
		for _, f := range found {
			got = append(got, f.Scheme+"://"+f.Host+f.Path)
			if f.Capabilities != all || f.Client == nil {
				t.Errorf("%s: unexpected host %+v", registry, f)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got hosts %v, want %v", registry, got, want)
		}
	}

	h = newHosts(RegistryConfig{Mirrors: map[string][]string{"*": {"https://u:hush@h\x7f"}}}, 0)
	if _, err := h.lookup(t.Context(), name); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("invalid endpoint: got %v, want an error without the password", err)
	}

	// config_path takes precedence over mirrors, as in containerd.
	a := newRegistry(t)
	root := t.TempDir()
	writeHosts(t, root, server(a))
	r := withConfig(t, RegistryConfig{ConfigPath: []string{root}, Mirrors: map[string][]string{name: {"http://127.0.0.1:1"}}})
	resolveOnce(t, r)
}

func TestMirrorsAreUsed(t *testing.T) {
	a := newRegistry(t)
	r := withConfig(t, RegistryConfig{Mirrors: map[string][]string{name: {a.URL}}})
	if got := resolveOnce(t, r); got.Host != hostOf(a) {
		t.Errorf("resolved by %s, want %s", got.Host, hostOf(a))
	}
}
