package kube

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// DefaultTimeout is the timeout of a call if none is configured.
const DefaultTimeout = 5 * time.Second

// Config configures a [Client].
type Config struct {
	// Kubeconfig is the absolute path of a kubeconfig file with the credential of this node, usually that of its kubelet.
	// The file does not have to exist yet.
	Kubeconfig string
	// Timeout is the maximum time of one call of a method, with all its requests. 0 means [DefaultTimeout].
	Timeout time.Duration
}

// Client is a client of the Kubernetes API. It is safe for concurrent use.
//
// After a failure, calls fail at once with the same reason, without a request: for one second, then twice as long after
// each further failure, up to 30 seconds. After each pause, one call at a time tries again. The first success ends this,
// and so does a change of the kubeconfig or of a file that it names. A failure is an API server that is unavailable,
// overloaded, or does not accept the credential. One that does not serve ImagePins, or does not allow the node to get
// them, is a failure for Find and Claim only. A refused claim is not a failure, and neither is a call with a deadline of
// less than half of the timeout that had no answer by then.
type Client struct {
	timeout  time.Duration
	sessions sessions
	server   breaker // for all calls
	pins     breaker // for Find and Claim
	// unreadable reports that the files of the last call could not be read, which was logged.
	unreadable atomic.Bool
}

// New returns a Client. It reads no file and makes no connection. The error is [imagepin.InvalidRequest]
// (ErrInvalidArgument).
func New(config Config) (*Client, error) {
	if !filepath.IsAbs(config.Kubeconfig) {
		return nil, imagepin.Invalid("kubeconfig", config.Kubeconfig, errors.New("not an absolute path"))
	}
	if config.Timeout < 0 {
		return nil, imagepin.Invalid("timeout", config.Timeout.String(), errors.New("negative"))
	}
	if config.Timeout == 0 {
		config.Timeout = DefaultTimeout
	}
	return &Client{
		timeout:  config.Timeout,
		sessions: sessions{config: config, sleep: sleep},
		server:   breaker{now: time.Now},
		pins:     breaker{now: time.Now},
	}, nil
}

// Close closes the connections when the running calls have ended. Later calls fail.
func (c *Client) Close() error {
	c.sessions.close()
	return nil
}

// notAvailable is the log line of the first of consecutive failures.
const notAvailable = "the Kubernetes API server is not available for ImagePins"

// purpose is what a call is for.
type purpose int

const (
	forOwner purpose = iota
	forPin           // needs ImagePins
	forEvent         // its failures do not concern other calls
)

// run makes a call within the timeout. If its connection was lost or its credential was not accepted, run repeats the call
// once on another connection, with the files as they are then.
func (c *Client) run(ctx context.Context, what purpose, call func(context.Context, *session) error) error {
	hurried := c.hurried(ctx)
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	s, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { c.sessions.release(s) }()
	p, err := c.enter(what == forPin)
	if err != nil {
		return err
	}
	err = call(limited, s)
	if failureOf(err).onOther() && limited.Err() == nil {
		c.sessions.replace(s)
		if next, nextErr := c.acquire(ctx); nextErr == nil {
			c.sessions.release(s)
			s = next
			err = call(limited, s)
		}
	}

	f := failureOf(err)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		c.giveUp(p)
		return ctx.Err()
	case f != nil && (f.late && hurried || what == forEvent):
		c.giveUp(p)
	default:
		if f != nil && f.reconnect {
			c.sessions.replace(s)
		}
		c.leave(ctx, p, f)
	}
	if f != nil {
		return f.err
	}
	return err
}

// hurried reports whether the deadline of a call is so early that a call that ends with it shows nothing.
func (c *Client) hurried(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < c.timeout/2
}

// failureOf returns nil if err is not an error of a request.
func failureOf(err error) *failure {
	var f *failure
	errors.As(err, &f)
	return f
}

// acquire returns the current session. If a file has changed, earlier failures no longer count. It logs the first of
// consecutive failures.
func (c *Client) acquire(ctx context.Context) (*session, error) {
	s, changed, err := c.sessions.acquire()
	if changed {
		c.server.reset()
		c.pins.reset()
	}
	if err == nil {
		c.unreadable.Store(false)
		return s, nil
	}
	e := &imagepin.Error{Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable, Err: err}
	if errors.Is(err, errClosed) {
		return nil, e
	}
	e.Hint = "kubelet writes its kubeconfig when it joins the cluster. The file is read again at the next call."
	if !c.unreadable.Swap(true) {
		log.G(ctx).WithError(e).Warn(notAvailable)
	}
	return nil, e
}

// Problem returns why calls fail now, or nil if that is not known. It reads the kubeconfig and the files that it names if they
// have changed, and makes no connection. The error is [imagepin.ClusterUnavailable].
func (c *Client) Problem(ctx context.Context) error {
	s, err := c.acquire(ctx)
	if err != nil {
		return err
	}
	c.sessions.release(s)
	for _, b := range []*breaker{&c.server, &c.pins} {
		if f := b.last(); f != nil {
			return f.err
		}
	}
	return nil
}

// passes are the passes of a call.
type passes struct {
	server, pins pass
	forPins      bool
}

// enter returns the error of an earlier failure if the call is not to be made.
func (c *Client) enter(pins bool) (passes, error) {
	p := passes{forPins: pins}
	var f *failure
	if p.server, f = c.server.enter(); f != nil {
		return passes{}, paused(f)
	}
	if pins {
		if p.pins, f = c.pins.enter(); f != nil {
			c.server.giveUp(p.server)
			return passes{}, paused(f)
		}
	}
	return p, nil
}

// giveUp ends a call that does not show whether the API server is available.
func (c *Client) giveUp(p passes) {
	c.server.giveUp(p.server)
	if p.forPins {
		c.pins.giveUp(p.pins)
	}
}

// leave ends a call with its failure, or with nil. It logs the first of consecutive failures, and the success after them.
func (c *Client) leave(ctx context.Context, p passes, f *failure) {
	var s scope
	if f != nil {
		s = f.scope
	}
	var failed, again bool
	if s == allCalls {
		failed = c.server.fail(p.server, f)
	} else {
		again = c.server.reset()
	}
	switch {
	case !p.forPins:
	case s == allCalls:
		c.pins.giveUp(p.pins)
	case s == pinCalls:
		failed = c.pins.fail(p.pins, f)
	default:
		again = c.pins.reset() || again
	}
	switch {
	case failed:
		log.G(ctx).WithError(f.err).Warn(notAvailable)
	case again && !c.pins.paused():
		log.G(ctx).Info("the Kubernetes API server is available for ImagePins again")
	}
}
