package resolve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
)

// Config configures a [Resolver].
type Config struct {
	Registry RegistryConfig
	// Timeout is the maximum time to resolve a reference.
	Timeout time.Duration
	// Prover derives proofs and distinguishes credentials.
	Prover *Prover
	// Transport sends the requests to all hosts. nil means containerd's own transport.
	Transport http.RoundTripper
	// Wrap, if set, returns a transport that sends requests with the given one. It is called for each host of a session.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Credentials, if set, returns the credential for a registry host if neither the caller nor Registry.Auths has one. It
	// is called only if the host asks for a credential. Its errors must not contain secrets.
	Credentials func(host string) (Credential, error)
	// Limiter limits what is received by requests that belong to no [bandwidth.Flow]. nil means no limit.
	Limiter *bandwidth.Limiter
	// Observer is notified of digest lookups. It may be nil.
	Observer Observer
	// Log gets what containerd's resolver logs about the configuration of registry hosts. nil means containerd's logger.
	Log *log.Entry
}

// Resolver resolves references and opens sessions. It is safe for concurrent use.
type Resolver struct {
	config    Config
	large     largeBlobs
	hosts     *hosts
	anonymous Credential
	resolves  flight.Group[Resolved]
	origins   origins
}

// New returns a Resolver.
func New(c Config) *Resolver {
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Log == nil {
		c.Log = log.L
	}
	return &Resolver{
		config:    c,
		large:     defaultLargeBlobs,
		hosts:     newHosts(c.Registry, c.Timeout),
		anonymous: nodeCredentials(c.Registry.Auths),
	}
}

// Session is a session with the registry hosts of one reference, with one credential.
type Session struct {
	ref     reference.Named
	hosts   func() ([]docker.RegistryHost, error)
	traffic *traffic
	// resolver uses all hosts, trusted only hosts with the capability resolve, and origin only the origin.
	resolver, trusted, origin remotes.Resolver
	// resolverOf returns another resolver, for selected hosts.
	resolverOf func(func([]docker.RegistryHost) []docker.RegistryHost) remotes.Resolver
	large      largeBlobs
	// useless is true if several connections for one blob were not faster than one, or failed.
	useless atomic.Bool
	origins *origins
	blobs   blobStates

	// Pulls for several targets share a session. Each sets the same limits, and the resolver does not synchronize that.
	mu      sync.Mutex
	limited bool
	options []transfer.ImageResolverOption
	limits  transfer.ImageResolverOptions
}

// Resolved is the result of resolving a reference.
type Resolved struct {
	// Root is the descriptor of an index or a manifest.
	Root ocispec.Descriptor
	// Host is the registry host that answered.
	Host string
	// Proves is true if the host has the capability resolve, so that its answer may be recorded as a proof. A mirror
	// with the capability pull only does not decide which credentials have access.
	Proves bool
	// Session can fetch Root, and is authenticated.
	Session *Session
}

// Session opens a session for ref. It sends no request.
func (r *Resolver) Session(ref reference.Named, c Credential) *Session {
	return r.session(ref, c, &traffic{limiter: r.config.Limiter})
}

// session is Session with the tracker of its requests.
func (r *Resolver) session(ref reference.Named, c Credential, t *traffic) *Session {
	// The resolver requests the hosts for every fetcher. They must be the same, or each fetcher would authenticate
	// again.
	hosts := sync.OnceValues(func() ([]docker.RegistryHost, error) {
		return r.authorizedHosts(reference.Domain(ref), c, t)
	})
	resolver := func(hosts func() ([]docker.RegistryHost, error)) remotes.Resolver {
		return docker.NewResolver(docker.ResolverOptions{
			Headers: r.config.Registry.Headers,
			Hosts:   func(string) ([]docker.RegistryHost, error) { return hosts() },
		})
	}
	resolverOf := func(which func([]docker.RegistryHost) []docker.RegistryHost) remotes.Resolver {
		return resolver(func() ([]docker.RegistryHost, error) {
			all, err := hosts()
			return which(slices.Clone(all)), err
		})
	}
	return &Session{
		ref: ref, hosts: hosts, traffic: t, resolver: resolver(hosts), large: r.large, origins: &r.origins, resolverOf: resolverOf,
		trusted: resolverOf(func(all []docker.RegistryHost) []docker.RegistryHost {
			return slices.DeleteFunc(all, func(h docker.RegistryHost) bool { return !h.Capabilities.Has(docker.HostCapabilityResolve) })
		}),
		origin: resolverOf(func(all []docker.RegistryHost) []docker.RegistryHost {
			return r.hosts.origin(reference.Domain(ref), all)
		}),
	}
}

// proves reports whether a host, with its path, has the capability resolve.
func (s *Session) proves(host string) bool {
	hosts, err := s.hosts()
	return err == nil && slices.ContainsFunc(hosts, func(h docker.RegistryHost) bool {
		return h.Host+h.Path == host && h.Capabilities.Has(docker.HostCapabilityResolve)
	})
}

// authorizedHosts returns the hosts of a registry with an authorizer for c. t records their traffic.
func (r *Resolver) authorizedHosts(registry string, c Credential, t *traffic) ([]docker.RegistryHost, error) {
	known, err := r.hosts.lookup(withRedactedLog(log.WithLogger(context.Background(), r.config.Log)), registry)
	if err != nil {
		return nil, err
	}
	hosts := make([]docker.RegistryHost, len(known))
	for i, h := range known {
		transport := h.Client.Transport
		if r.config.Transport != nil {
			transport = r.config.Transport
		}
		if r.config.Wrap != nil {
			transport = r.config.Wrap(transport)
		}
		client, tokens := *h.Client, *h.Client
		client.Transport = attempts(t.watch(h.Host, h.Path, transport), i, i == len(known)-1)
		tokens.Transport = t.watchTokens(h.Host, h.Path, transport)
		headers := maps.Clone(r.config.Registry.Headers)
		for k, v := range h.Header {
			if headers == nil {
				headers = make(http.Header)
			}
			headers[k] = v
		}
		h.Client = &client
		h.Authorizer = docker.NewDockerAuthorizer(
			docker.WithAuthClient(&tokens),
			docker.WithAuthCreds(func(host string) (string, string, error) {
				effective, err := r.effective(c, host)
				if err != nil {
					return "", "", err
				}
				return effective.forHost(host)
			}),
			docker.WithAuthHeader(headers),
		)
		hosts[i] = h
	}
	return hosts, nil
}

// effective returns the credential for a host: the caller's, or the node's if the caller has none.
func (r *Resolver) effective(c Credential, host string) (Credential, error) {
	if c.Empty() {
		c = r.config.Registry.Auths[host]
	}
	if c.Empty() && r.config.Credentials != nil {
		return r.config.Credentials(host)
	}
	return c, nil
}

// Proof returns the proof that c has been accepted for a digest of ref's repository. For a caller without a credential,
// the proof depends on the node's own credentials: it becomes invalid when they change.
func (r *Resolver) Proof(ref reference.Named, c Credential, root digest.Digest) string {
	if c.Empty() {
		c = r.anonymous
	}
	return r.config.Prover.Proof(c, ref.Name(), root)
}

// Proofs returns all proofs that allow c to use a digest of ref's repository without a request: its own, and the one of
// a caller without a credential.
func (r *Resolver) Proofs(ref reference.Named, c Credential, root digest.Digest) []string {
	return []string{r.Proof(ref, c, root), r.Proof(ref, Credential{}, root)}
}

// nodeCredentials combines the node's credentials into one, which represents a caller without a credential.
func nodeCredentials(auths map[string]Credential) Credential {
	var all strings.Builder
	for _, host := range slices.Sorted(maps.Keys(auths)) {
		c := auths[host]
		fmt.Fprintf(&all, "%q %q %q %q %q %q\n", host, c.Username, c.Password, c.Auth, c.ServerAddress, c.IdentityToken)
	}
	return Credential{Auth: all.String()}
}

// Resolve resolves ref at the registry. Concurrent identical calls are merged. A tag is resolved only by hosts with the
// capability resolve, a digest by all hosts, see [Resolved.Proves].
//
// Errors are [imagepin.Error]: PullAccessDenied (ErrPermissionDenied or ErrUnauthenticated), ManifestPullTimeout
// (context.DeadlineExceeded), CannotPullImageManifest and ContentCorrupt (ErrFailedPrecondition) if the answer is not
// an image. The class of CannotPullImageManifest is ErrNotFound; ErrUnavailable if a registry or its token service
// cannot be reached or answers 429 or 5xx; ErrInvalidArgument; ErrFailedPrecondition if no host may be used, or the
// manifest is too large; or ErrNotImplemented for a manifest of schema 1.
func (r *Resolver) Resolve(ctx context.Context, ref reference.Named, c Credential) (Resolved, error) {
	return r.ask(ctx, ref, c, allHosts, r.resolves.Do)
}

// Authorize checks whether c may pull the digest in ref. It asks only hosts with the capability resolve. Its session
// fetches from all hosts. It fails as [Resolver.Resolve] does.
func (r *Resolver) Authorize(ctx context.Context, ref reference.Canonical, c Credential) (Resolved, error) {
	return r.ask(ctx, ref, c, trustedHosts, r.resolves.Do)
}

// flying is a method of [flight.Group].
type flying func(ctx context.Context, key string, work func(context.Context) (Resolved, error)) (Resolved, error)

// ask resolves ref at some hosts of the registry.
func (r *Resolver) ask(ctx context.Context, ref reference.Named, c Credential, asked askedHosts, do flying) (Resolved, error) {
	key := fmt.Sprintf("%s\x00%d\x00%s", ref, asked, r.config.Prover.Identity(c))
	return do(ctx, key, func(ctx context.Context) (Resolved, error) { return r.observed(ctx, r.Session(ref, c), asked) })
}

func (r *Resolver) resolve(ctx context.Context, s *Session, asked askedHosts) (Resolved, error) {
	ctx, cancel := context.WithTimeoutCause(withRedactedLog(ctx), r.config.Timeout, errTimeout)
	defer cancel()
	root, host, err := s.root(ctx, s.resolverFor(asked))
	if err != nil {
		if denied := s.denied(err, ""); denied != nil {
			return Resolved{}, denied
		}
		if errors.Is(context.Cause(ctx), errTimeout) || timedOut(err) {
			return Resolved{}, timeoutError(s.ref, r.config.Timeout)
		}
		if ctx.Err() != nil {
			return Resolved{}, context.Cause(ctx)
		}
		return Resolved{}, s.resolveError(err, asked)
	}
	if isSchema1(root.MediaType) {
		return Resolved{}, schema1Error(s.ref, fmt.Errorf("media type %q is not supported since containerd 2.0", root.MediaType))
	}
	if !isImage(root.MediaType) {
		return Resolved{}, notAnImageError(s.ref, root)
	}
	return Resolved{Root: root, Host: hostname(host), Proves: s.proves(host), Session: s}, nil
}

// Fetcher returns a fetcher for the content of the session's repository. It fetches a large blob over several connections
// where that is faster, within the limits of [Session.SetOptions], unless they have a chunk size.
//
// The errors of its readers are [imagepin.Error] if the registry denies access (PullAccessDenied) or is unavailable
// (CannotPullImage, ErrUnavailable).
func (s *Session) Fetcher(ctx context.Context) (remotes.Fetcher, error) {
	s.mu.Lock()
	f, err := s.resolver.Fetcher(ctx, s.ref.String())
	limits, options := s.limits, s.options
	s.mu.Unlock()
	if err != nil {
		return nil, RedactError(err)
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		if desc.Size < 0 {
			return nil, fmt.Errorf("invalid descriptor size %d: %w", desc.Size, errdefs.ErrInvalidArgument)
		}
		rc := s.body(withRedactedLog(ctx), desc, sessionBlobs{s, options, f}, limits)
		return &fetched{ReadSeekCloser: rc, classify: func(err error) error { return s.fetchError(ctx, err) }}, nil
	}), nil
}

// body returns the body of a blob.
func (s *Session) body(ctx context.Context, desc ocispec.Descriptor, blobs sessionBlobs, limits transfer.ImageResolverOptions) io.ReadSeekCloser {
	if desc.Size <= s.large.size || limits.Performances.MaxConcurrentDownloads <= 1 || limits.Performances.ConcurrentLayerFetchBuffer > 0 ||
		limits.DownloadLimiter == nil {
		return newMainBody(ctx, desc, blobs)
	}
	return newLargeBody(ctx, desc, blobs, s.large, limits.DownloadLimiter, &s.useless)
}

// fetched is a body that returns the errors of [Session.Fetcher]. The first Read sends the request, so all errors come
// from there.
type fetched struct {
	io.ReadSeekCloser
	classify func(error) error
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.ReadSeekCloser.Read(p)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, f.classify(err)
}

// SetOptions passes the transfer service's limits to the resolver. Only the first call with options has an effect.
func (s *Session) SetOptions(options ...transfer.ImageResolverOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.resolver.(remotes.ResolverWithOptions); ok && len(options) > 0 && !s.limited {
		r.SetOptions(options...)
		for _, set := range options {
			set(&s.limits)
		}
		s.limited, s.options = true, options
	}
}

// Stalled returns a channel that is closed when requests of the session have waited for a registry for timeout without progress. It
// stops watching when ctx ends.
func (s *Session) Stalled(ctx context.Context, timeout time.Duration) <-chan struct{} {
	s.traffic.limit.Store(int64(timeout))
	return s.traffic.stalled(timeout, ctx.Done())
}

// Hosts returns the registry hosts of the session with their paths, in the order in which they are asked. It is empty if their
// configuration is invalid.
func (s *Session) Hosts() []string {
	hosts, err := s.hosts()
	if err != nil {
		return nil
	}
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Host + h.Path
	}
	return names
}

// Source returns the registry host that the bytes of a blob come from which a fetch returns now, as in [Session.Hosts]. It is
// empty before the first one.
func (s *Session) Source(d digest.Digest) (host string) {
	all, err := s.hosts()
	if err != nil {
		return ""
	}
	s.blobs.with(d, func(b *blobState) {
		if b.host >= 0 && b.host < len(all) {
			host = all[b.host].Host + all[b.host].Path
		}
	})
	return host
}
