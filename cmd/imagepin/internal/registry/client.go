package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// DefaultHostsDirs are the directories of hosts.toml files that containerd's clients use by default. A directory that
// does not exist is ignored.
var DefaultHostsDirs = []string{"/etc/containerd/certs.d", "/etc/docker/certs.d"}

// Defaults of [Config].
const (
	DefaultConcurrency = 8
	DefaultTimeout     = time.Minute
	DefaultMaxWait     = 5 * time.Minute
)

// Config configures a [Client]. Its zero value works.
type Config struct {
	// HostsDirs are searched for <host>/hosts.toml, in order. nil means DefaultHostsDirs.
	HostsDirs []string
	// Credentials returns the credentials of registry hosts. nil means those of [DockerCredentials].
	Credentials Credentials
	// Concurrency is the maximum number of concurrent calls of Resolve and ReadAll for one registry. Each has one request
	// at a time. 0 means DefaultConcurrency.
	Concurrency int
	// Timeout is the maximum time of Resolve and ReadAll, and for which the reader of Fetch may receive nothing. It does
	// not include the time that a registry asks to wait. 0 means DefaultTimeout.
	Timeout time.Duration
	// MaxWait is the maximum time for which a call waits because a registry limits the rate of requests (429). 0 means
	// DefaultMaxWait.
	MaxWait time.Duration
}

// Client reads images from registries. It is safe for concurrent use.
//
// If a registry answers 429, all calls for its host wait for the time in Retry-After, and then continue.
//
// It logs nothing: its errors have what containerd's resolver logs.
//
// Errors are those of [resolve.Resolver.Resolve] and [resolve.Session.Fetcher], with hints for users of docker's
// configuration. In addition they are [imagepin.Error] with ContentCorrupt (ErrFailedPrecondition) if content does not
// match its digest, and PullStalled (ErrUnavailable) if nothing was received for Config.Timeout.
type Client struct {
	config   Config
	resolver *resolve.Resolver
	limits   *rateLimits

	mu       sync.Mutex
	slots    map[string]*semaphore.Weighted // by registry
	sessions map[string]*resolve.Session    // by repository; they are authenticated
}

// New returns a Client. It fails if docker's configuration exists and cannot be read.
func New(c Config) (*Client, error) {
	if c.HostsDirs == nil {
		c.HostsDirs = DefaultHostsDirs
	}
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.MaxWait = cmp.Or(c.MaxWait, DefaultMaxWait)
	if c.Credentials == nil {
		docker, err := DockerCredentials()
		if err != nil {
			return nil, err
		}
		c.Credentials = docker
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	prover, err := resolve.NewProver(key)
	if err != nil {
		return nil, err
	}
	limits := &rateLimits{}
	return &Client{
		config: c, limits: limits,
		resolver: resolve.New(resolve.Config{
			Registry: resolve.RegistryConfig{ConfigPath: c.HostsDirs}, Timeout: c.Timeout, Prover: prover,
			Wrap: limits.wrap, Credentials: once(c.Credentials), Log: noLog(),
		}),
		slots: make(map[string]*semaphore.Weighted), sessions: make(map[string]*resolve.Session),
	}, nil
}

// Resolve returns the descriptor of the index or manifest that ref means now. It sends one HEAD request, and those that
// the registry's authentication needs. A reference by digest fails with ErrNotFound if the registry does not have it.
func (c *Client) Resolve(ctx context.Context, ref reference.Named) (ocispec.Descriptor, error) {
	release, err := c.slot(ctx, ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer release()
	ctx = withoutLog(ctx)
	var found resolve.Resolved
	err = c.waitFor(ctx, ref, func() error {
		found, err = c.resolver.Resolve(ctx, ref, resolve.Credential{})
		return err
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	c.mu.Lock()
	c.sessions[ref.Name()] = found.Session
	c.mu.Unlock()
	return found.Root, nil
}

// slot waits for one of the registry's slots.
func (c *Client) slot(ctx context.Context, ref reference.Named) (release func(), _ error) {
	registry := reference.Domain(ref)
	c.mu.Lock()
	s, ok := c.slots[registry]
	if !ok {
		s = semaphore.NewWeighted(int64(c.config.Concurrency))
		c.slots[registry] = s
	}
	c.mu.Unlock()
	if err := s.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { s.Release(1) }, nil
}

// session returns the session for a repository.
func (c *Client) session(repo reference.Named) *resolve.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.sessions[repo.Name()]
	if !ok {
		s = c.resolver.Session(repo, resolve.Credential{})
		c.sessions[repo.Name()] = s
	}
	return s
}

// withoutLog returns a context for containerd's resolver, which logs each failure of each host.
func withoutLog(ctx context.Context) context.Context { return log.WithLogger(ctx, noLog()) }

// noLog returns a logger that writes nothing.
func noLog() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func corrupt(ref reference.Named, message string) error {
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Ref: ref.String(), Class: errdefs.ErrFailedPrecondition, Message: message,
		Hint: "Check the registry and its mirrors, and that no proxy changes the content.",
	}
}
