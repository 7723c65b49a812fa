package resolve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
)

// Config is what a Resolver needs.
type Config struct {
	Registry RegistryConfig
	// Timeout is how long a registry may take to say which digest a
	// reference means.
	Timeout time.Duration
	// Prover tells credentials apart.
	Prover *Prover
	// Transport sends the requests to every host; nil is containerd's own.
	Transport http.RoundTripper
	// Observer is notified of digest lookups; nil is nobody.
	Observer Observer
}

// Resolver starts sessions. It is safe for concurrent use.
type Resolver struct {
	Config
	hosts    hosts
	nobody   Credential
	resolves flight.Group[Resolved]
}

// New makes a resolver.
func New(c Config) *Resolver {
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	return &Resolver{
		Config: c,
		hosts:  hosts{config: c.Registry, timeout: c.Timeout},
		nobody: nodeCredentials(c.Registry.Auths),
	}
}

// Session is a conversation with the hosts of one reference's registry, under
// one credential.
type Session struct {
	ref     reference.Named
	hosts   func() ([]docker.RegistryHost, error)
	traffic *traffic
	// resolver asks all hosts, and trusted those that may resolve.
	resolver, trusted remotes.Resolver

	// Pulls for several targets share a session, and each has the same limits
	// to set: the resolver takes them unguarded.
	mu      sync.Mutex
	limited bool
}

// Resolved is what a registry says that a reference means.
type Resolved struct {
	// Root is the descriptor: an index or a manifest.
	Root ocispec.Descriptor
	// Host is the registry host that said so.
	Host string
	// Proves says that the host may resolve, so that what it has accepted may
	// be noted as a proof. A mirror that may only pull is not asked what a
	// credential may have.
	Proves bool
	// Session can fetch what Root names, with the authentication at hand.
	Session *Session
}

// Session starts a conversation about ref. Nothing is sent yet.
func (r *Resolver) Session(ref reference.Named, c Credential) *Session {
	t := &traffic{}
	// The resolver asks for the hosts anew for every fetcher. They have to be
	// the same ones, or each would be authenticated with again.
	hosts := sync.OnceValues(func() ([]docker.RegistryHost, error) {
		return r.authorized(reference.Domain(ref), c, t)
	})
	resolver := func(hosts func() ([]docker.RegistryHost, error)) remotes.Resolver {
		return docker.NewResolver(docker.ResolverOptions{
			Headers: r.Registry.Headers,
			Hosts:   func(string) ([]docker.RegistryHost, error) { return hosts() },
		})
	}
	return &Session{
		ref: ref, hosts: hosts, traffic: t, resolver: resolver(hosts),
		trusted: resolver(func() ([]docker.RegistryHost, error) {
			all, err := hosts()
			return slices.DeleteFunc(slices.Clone(all), func(h docker.RegistryHost) bool {
				return !h.Capabilities.Has(docker.HostCapabilityResolve)
			}), err
		}),
	}
}

// proves reports whether a host, with its path, may resolve.
func (s *Session) proves(host string) bool {
	hosts, err := s.hosts()
	return err == nil && slices.ContainsFunc(hosts, func(h docker.RegistryHost) bool {
		return h.Host+h.Path == host && h.Capabilities.Has(docker.HostCapabilityResolve)
	})
}

// authorized gives the hosts of a registry with an authorizer for c, watched
// by t.
func (r *Resolver) authorized(registry string, c Credential, t *traffic) ([]docker.RegistryHost, error) {
	known, err := r.hosts.lookup(withRedactedLog(context.Background()), registry)
	if err != nil {
		return nil, err
	}
	hosts := make([]docker.RegistryHost, len(known))
	for i, h := range known {
		transport := h.Client.Transport
		if r.Transport != nil {
			transport = r.Transport
		}
		client, tokens := *h.Client, *h.Client
		client.Transport = t.watch(h.Host, h.Path, transport)
		tokens.Transport = t.watchTokens(h.Host, h.Path, transport)
		headers := maps.Clone(r.Registry.Headers)
		for k, v := range h.Header {
			if headers == nil {
				headers = make(http.Header)
			}
			headers[k] = v
		}
		h.Client = &client
		h.Authorizer = docker.NewDockerAuthorizer(
			docker.WithAuthClient(&tokens),
			docker.WithAuthCreds(func(host string) (string, string, error) { return r.effective(c, host).For(host) }),
			docker.WithAuthHeader(headers),
		)
		hosts[i] = h
	}
	return hosts, nil
}

// effective is the credential for a host: the caller's, or else the node's.
func (r *Resolver) effective(c Credential, host string) Credential {
	if c.Empty() {
		return r.Registry.Auths[host]
	}
	return c
}

// Proof derives the proof that c has been accepted for a digest of ref's
// repository. A caller without a credential has been let in by none, or by the
// node's own: the proof no longer holds once those change.
func (r *Resolver) Proof(ref reference.Named, c Credential, root digest.Digest) string {
	if c.Empty() {
		c = r.nobody
	}
	return r.Prover.Proof(c, ref.Name(), root)
}

// Proofs are all that would let c have a digest of ref's repository without
// asking the registry: its own, and that of no credential at all.
func (r *Resolver) Proofs(ref reference.Named, c Credential, root digest.Digest) []string {
	return []string{r.Proof(ref, c, root), r.Proof(ref, Credential{}, root)}
}

// nodeCredentials stands for what a caller without a credential has.
func nodeCredentials(auths map[string]Credential) Credential {
	var all strings.Builder
	for _, host := range slices.Sorted(maps.Keys(auths)) {
		c := auths[host]
		fmt.Fprintf(&all, "%q %q %q %q %q %q\n", host, c.Username, c.Password, c.Auth, c.ServerAddress, c.IdentityToken)
	}
	return Credential{Auth: all.String()}
}

// Resolve asks the registry what ref means. Equal questions at one time are
// asked once. A tag is a question for the hosts that may resolve, a digest for
// all of them: see [Resolved.Proves].
//
// Errors are [imagepin.Error]: PullAccessDenied (ErrPermissionDenied, or
// ErrUnauthenticated), ManifestPullTimeout (context.DeadlineExceeded),
// CannotPullImageManifest (ErrNotFound; ErrUnavailable where a registry, or the
// service that gives its tokens, cannot be reached or answers 429 or 5xx;
// ErrInvalidArgument; ErrFailedPrecondition where no host may be asked),
// ContentCorrupt (ErrFailedPrecondition) where the answer is no image.
func (r *Resolver) Resolve(ctx context.Context, ref reference.Named, c Credential) (Resolved, error) {
	return r.ask(ctx, ref, c, false)
}

// Authorize asks whether c may have the digest that ref names, and so only the
// hosts that may resolve. Its session fetches from all hosts. Its errors are
// those of [Resolver.Resolve].
func (r *Resolver) Authorize(ctx context.Context, ref reference.Canonical, c Credential) (Resolved, error) {
	return r.ask(ctx, ref, c, true)
}

// ask asks all hosts of a registry, or only those that may resolve.
func (r *Resolver) ask(ctx context.Context, ref reference.Named, c Credential, trusted bool) (Resolved, error) {
	key := fmt.Sprintf("%s\x00%t\x00%s", ref, trusted, r.Prover.Identity(c))
	return r.resolves.Do(ctx, key, func(ctx context.Context) (Resolved, error) {
		s := r.Session(ref, c)
		resolver := s.resolver
		if trusted {
			resolver = s.trusted
		}
		return r.observed(ctx, s, resolver)
	})
}

func (r *Resolver) resolve(ctx context.Context, s *Session, resolver remotes.Resolver) (Resolved, error) {
	ctx, cancel := context.WithTimeoutCause(withRedactedLog(ctx), r.Timeout, errTimeout)
	defer cancel()
	_, root, err := resolver.Resolve(ctx, s.ref.String())
	if refused, ok := s.traffic.refused(); ok && err != nil {
		return Resolved{}, deniedError(s.ref, refused, err)
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errTimeout) || silent(err) {
			return Resolved{}, timeoutError(s.ref, r.Timeout)
		}
		if ctx.Err() != nil {
			return Resolved{}, context.Cause(ctx)
		}
		return Resolved{}, s.resolveError(err)
	}
	if !images.IsIndexType(root.MediaType) && !images.IsManifestType(root.MediaType) {
		return Resolved{}, notAnImageError(s.ref, root)
	}
	host := s.traffic.answered()
	return Resolved{Root: root, Host: hostname(host), Proves: s.proves(host), Session: s}, nil
}

// Fetcher fetches the content of the session's repository.
//
// Errors of its readers are [imagepin.Error] where the registry refused
// (PullAccessDenied) or was not able to answer (CannotPullImage,
// ErrUnavailable).
func (s *Session) Fetcher(ctx context.Context) (remotes.Fetcher, error) {
	s.mu.Lock()
	f, err := s.resolver.Fetcher(ctx, s.ref.String())
	s.mu.Unlock()
	if err != nil {
		return nil, RedactError(err)
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		rc, err := f.Fetch(withRedactedLog(ctx), desc)
		if err != nil {
			return nil, s.fetchError(err)
		}
		return &fetched{ReadCloser: rc, session: s}, nil
	}), nil
}

// fetched is a body whose errors are those of [Session.Fetcher]. The request is
// not sent before the first Read, so that all of them come from there.
type fetched struct {
	io.ReadCloser
	session *Session
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, f.session.fetchError(err)
}

// Seek implements io.Seeker, by which a download is resumed.
func (f *fetched) Seek(offset int64, whence int) (int64, error) {
	s, ok := f.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek: %w", errdefs.ErrNotImplemented)
	}
	return s.Seek(offset, whence)
}

// SetOptions passes the transfer service's limits on to the resolver, the first
// time that there are any.
func (s *Session) SetOptions(options ...transfer.ImageResolverOption) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.resolver.(remotes.ResolverWithOptions); ok && len(options) > 0 && !s.limited {
		r.SetOptions(options...)
		s.limited = true
	}
}

// Stalled is closed when requests of the session have been open for timeout
// without any progress. The watch ends when ctx does.
func (s *Session) Stalled(ctx context.Context, timeout time.Duration) <-chan struct{} {
	return s.traffic.stalled(timeout, ctx.Done())
}

// Bytes is how much the session has received, in bytes.
func (s *Session) Bytes() int64 { return s.traffic.bytes.Load() }

var errTimeout = errors.New("the registry did not answer in time")

// silent tells whether a host was reached and did not answer in its share of
// the time.
func silent(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && request.Timeout() && !errors.As(err, &network)
}

func deniedError(ref reference.Named, r refusal, err error) error {
	var class error = errdefs.ErrPermissionDenied
	if r.status == http.StatusUnauthorized {
		class = errdefs.ErrUnauthenticated
	}
	host := r.host
	if host != r.registry {
		host += ", which gives tokens for " + r.registry + ","
	}
	return &imagepin.Error{
		Reason: imagepin.PullAccessDenied, Ref: ref.String(),
		Message:  fmt.Sprintf("%s answered %d %s", host, r.status, http.StatusText(r.status)),
		Hint:    "Check the image pull secret of the pod, the service account's imagePullSecrets, and that the credential may read this repository.",
		Class: class, Err: opaque(err),
	}
}

// opaque is the text of an error whose class does not count: of several hosts
// that answer differently, it is one's.
func opaque(err error) error { return errors.New(RedactError(err).Error()) }

func timeoutError(ref reference.Named, timeout time.Duration) error {
	return &imagepin.Error{
		Reason: imagepin.ManifestPullTimeout, Ref: ref.String(),
		Message:  fmt.Sprintf("the registry did not say within %s which digest it means", timeout),
		Hint:    "Check the network to the registry and its mirrors, or raise manifest_pull_timeout.",
		Class: context.DeadlineExceeded, Err: errTimeout,
	}
}

func notAnImageError(ref reference.Named, root ocispec.Descriptor) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Ref: ref.String(),
		Message:  fmt.Sprintf("the registry answered with %q (%s), which is neither an image index nor an image manifest", root.MediaType, root.Digest),
		Hint:    "Check that the registry's address is right, and that no proxy or login page answers in its place.",
		Class: errdefs.ErrFailedPrecondition,
	}
}

// resolveError classifies what containerd's resolver returned.
func (s *Session) resolveError(err error) error {
	e := &imagepin.Error{
		Reason: imagepin.CannotPullImageManifest, Ref: s.ref.String(), Err: RedactError(err),
		Class: errdefs.ErrUnavailable,
		Hint:    "Check the network to the registry and its mirrors.",
	}
	var unexpected remoteserrors.ErrUnexpectedStatus
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		e.Hint = "Check the registry's certificate, and the ca of the registry's hosts.toml."
	case errors.As(err, &unexpected) && unexpected.StatusCode == http.StatusTooManyRequests:
		e.Message = "the registry limits the rate of requests"
		e.Hint = "Wait, or configure a mirror or a credential with a higher limit."
	case errors.As(err, &unexpected) && unexpected.StatusCode < 500:
		e.Class = errdefs.ErrInvalidArgument
		e.Hint = "Check the reference, and that the host is a registry."
	case errdefs.IsNotFound(err) && s.traffic.answered() == "":
		e.Class = errdefs.ErrFailedPrecondition
		e.Message = "none of its hosts may be asked"
		e.Hint = "Give one of them the capabilities \"pull\" and \"resolve\" in the registry's hosts.toml."
	case errors.Is(err, docker.ErrInvalidAuthorization):
		e.Reason, e.Class = imagepin.PullAccessDenied, errdefs.ErrUnauthenticated
		e.Hint = "Check the image pull secret of the pod, and that the credential may read this repository."
	case errdefs.IsNotFound(err) && s.unavailable():
		e.Message = someNotAsked
		e.Err = opaque(err)
	case errdefs.IsNotFound(err):
		e.Class = errdefs.ErrNotFound
		e.Hint = "Check the reference: its registry has no such tag or digest."
	case errdefs.IsInvalidArgument(err), strings.Contains(err.Error(), "not a valid digest"):
		e.Reason, e.Class = imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition
		e.Hint = "Check that the registry's address is right, and that no proxy or login page answers in its place."
	}
	return e
}

// fetchError classifies what came instead of content.
func (s *Session) fetchError(err error) error {
	var unexpected remoteserrors.ErrUnexpectedStatus
	status := 0
	if errors.As(err, &unexpected) {
		status = unexpected.StatusCode
	}
	if status != 0 || errdefs.IsNotFound(err) || errors.Is(err, docker.ErrInvalidAuthorization) || errors.Is(err, auth.ErrNoToken) {
		// Of several hosts the error is the first one's.
		if refused, ok := s.traffic.refused(); ok {
			return deniedError(s.ref, refused, err)
		}
	}
	e := &imagepin.Error{
		Reason: imagepin.CannotPullImage, Ref: s.ref.String(), Class: errdefs.ErrUnavailable, Err: RedactError(err),
		Hint: "Check the network to the registry and its mirrors, and the registry itself.",
	}
	switch {
	case status == http.StatusTooManyRequests:
		e.Message = "the registry limits the rate of requests"
		e.Hint = "Wait, or configure a mirror or a credential with a higher limit."
	case status >= 500:
	case errdefs.IsNotFound(err) && s.unavailable():
		e.Message = someNotAsked
		e.Err = opaque(err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = "the connection was cut, and could not be taken up again"
	default:
		return RedactError(err)
	}
	return e
}

// someNotAsked is what happened where not all hosts could say that they do not
// have something.
const someNotAsked = "no host has it, and some could not be asked"

// unavailable tells whether a host failed to answer the question at all, so
// that another's "not found" is not the last word.
func (s *Session) unavailable() bool { return slices.ContainsFunc(s.traffic.statuses(), isUnavailable) }
