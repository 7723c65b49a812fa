package resolve

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"k8s.io/utils/lru"
)

// hostsMaxAge is how long a registry's configuration is used before it is read again: files outside its directory (a CA
// bundle) may have changed.
const hostsMaxAge = 5 * time.Minute

// maxKnownHosts is the maximum number of registries whose configuration is kept. A reference can have any registry,
// including one that does not exist.
const maxKnownHosts = 128

// RegistryConfig configures the access to registries. It has the settings of
// [plugins."io.containerd.cri.v1.images".registry] in containerd's CRI.
type RegistryConfig struct {
	// ConfigPath has the directories to search for <host>/hosts.toml, in order.
	ConfigPath []string
	// Headers are sent with every request.
	Headers http.Header
	// Mirrors maps a registry host, or "*", to its mirror endpoints. It is used only if ConfigPath is empty.
	Mirrors map[string][]string
	// Auths maps a registry host to the node's own credential for it, which is used if the caller has none.
	Auths map[string]Credential
}

// hosts finds the hosts that serve a registry. It keeps one client, with one connection pool, for each host of the most
// recently used registries.
type hosts struct {
	config  RegistryConfig
	timeout time.Duration // for resolving a reference

	mu    sync.Mutex
	known *lru.Cache // of *knownHosts, by registry
}

type knownHosts struct {
	hosts       []docker.RegistryHost
	fingerprint string
	read        time.Time
}

func newHosts(c RegistryConfig, timeout time.Duration) *hosts {
	return &hosts{config: c, timeout: timeout, known: lru.NewWithEvictionFunc(maxKnownHosts, func(_ lru.Key, k any) {
		for _, o := range k.(*knownHosts).hosts { // requests in progress continue
			o.Client.CloseIdleConnections()
		}
	})}
}

// lookup returns the hosts of a registry in the order of use. It does not set authorizers.
func (h *hosts) lookup(ctx context.Context, registry string) ([]docker.RegistryHost, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fingerprint, err := h.fingerprint(registry)
	if err != nil {
		return nil, &configError{registry, err}
	}
	known, _ := h.known.Get(registry)
	if k, ok := known.(*knownHosts); ok && k.fingerprint == fingerprint && time.Since(k.read) < hostsMaxAge {
		return k.hosts, nil
	}
	found, err := h.read(ctx, registry)
	if err != nil {
		return nil, &configError{registry, err}
	}
	h.known.Remove(registry)
	h.known.Add(registry, &knownHosts{hosts: found, fingerprint: fingerprint, read: time.Now()})
	return found, nil
}

// configError is an error of the configuration of a registry on this node.
type configError struct {
	registry string
	err      error
}

func (e *configError) Error() string {
	return fmt.Sprintf("configuration of registry %s: %v", e.registry, e.err)
}
func (e *configError) Unwrap() error { return e.err }

func (h *hosts) read(ctx context.Context, registry string) ([]docker.RegistryHost, error) {
	if h.useMirrors() {
		return h.mirrors(registry)
	}
	var transports []*http.Transport
	found, err := config.ConfigureHosts(ctx, config.HostOptions{HostDir: h.dir, UpdateClient: func(c *http.Client) error {
		if t, ok := c.Transport.(*http.Transport); ok {
			transports = append(transports, t)
		}
		return nil
	}})(registry)
	h.adjust(len(found), transports...)
	return found, err
}

// useMirrors reports whether the older configuration of mirrors applies.
func (h *hosts) useMirrors() bool { return len(h.config.ConfigPath) == 0 && len(h.config.Mirrors) > 0 }

// adjust gives each of n hosts an equal share of the time for resolving. containerd's own limit of 30s would make a
// longer manifest_pull_timeout ineffective. The full time for each host would let a host that hangs use up the time of
// the next. It also keeps the connections of a large blob open between chunks.
func (h *hosts) adjust(n int, transports ...*http.Transport) {
	for _, t := range transports {
		t.MaxIdleConnsPerHost = max(t.MaxIdleConnsPerHost, int(defaultLargeBlobs.connections))
		t.ResponseHeaderTimeout = max(t.ResponseHeaderTimeout, h.timeout/time.Duration(max(n, 1)))
	}
}

// dir returns a registry's directory in the first root that has one. registry.NewOCIRegistry would take the list of
// roots for the name of one root, and find nothing.
func (h *hosts) dir(registry string) (string, error) {
	for _, root := range h.config.ConfigPath {
		dir, err := config.HostDirFromRoot(root)(registry)
		if err != nil && !errdefs.IsNotFound(err) {
			return "", err
		}
		if dir != "" {
			return dir, nil
		}
	}
	return "", errdefs.ErrNotFound
}

// fingerprint returns a text that changes when a file in the registry's directory changes.
func (h *hosts) fingerprint(registry string) (string, error) {
	dir, err := h.dir(registry)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(dir)
	for _, f := range files {
		info, err := os.Stat(filepath.Join(dir, f.Name()))
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "\n%s %d %d", f.Name(), info.Size(), info.ModTime().UnixNano())
	}
	return b.String(), nil
}

// mirrors returns the hosts of a registry from the CRI's older configuration: registry.mirrors.<host>.endpoint, and the
// registry itself last.
func (h *hosts) mirrors(registry string) ([]docker.RegistryHost, error) {
	endpoints, ok := h.config.Mirrors[registry]
	if !ok {
		endpoints = h.config.Mirrors["*"]
	}
	self, err := docker.DefaultHost(registry)
	if err != nil {
		return nil, err
	}
	var found []docker.RegistryHost
	var transports []*http.Transport
	for _, e := range append(append([]string{}, endpoints...), self) {
		u, err := endpointURL(e)
		if err != nil {
			return nil, err
		}
		if e == self && slices.ContainsFunc(found, func(h docker.RegistryHost) bool { return h.Host == self }) {
			continue
		}
		t := docker.DefaultHTTPTransport(nil)
		transports = append(transports, t)
		found = append(found, docker.RegistryHost{
			Client:       &http.Client{Transport: t},
			Host:         u.Host,
			Scheme:       u.Scheme,
			Path:         u.Path,
			Capabilities: docker.HostCapabilityResolve | docker.HostCapabilityPull | docker.HostCapabilityReferrers,
		})
	}
	h.adjust(len(found), transports...)
	return found, nil
}

func endpointURL(endpoint string) (*url.URL, error) {
	if !strings.Contains(endpoint, "://") {
		host, _, _ := strings.Cut(endpoint, "/")
		scheme := "https"
		if localhost, _ := docker.MatchLocalhost(host); localhost {
			scheme = "http"
		}
		endpoint = scheme + "://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("registry endpoint: %w: %w", RedactError(err), errdefs.ErrInvalidArgument)
	}
	if u.Path == "" {
		u.Path = "/v2"
	}
	return u, nil
}
