//go:build unix

package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

const (
	// nodeKeyFile is in the state directory.
	nodeKeyFile = "node.key"
	// minProbeInterval is the first wait for a containerd that is not ready. Each wait is twice as long as the one before, up
	// to maxProbeInterval.
	minProbeInterval, maxProbeInterval = 10 * time.Millisecond, 200 * time.Millisecond
	// probeTimeout is the timeout of one probe of containerd.
	probeTimeout = 10 * time.Second
	// stopGrace is how long calls in progress may take when the server stops.
	stopGrace = 10 * time.Second
)

// Config has the dependencies of a Server.
type Config struct {
	// Load reads the configuration, at the start and at each Reload.
	Load   func() (*config.ServeConfig, error)
	Reload <-chan os.Signal
	Parts  node.Parts
}

// Server is imagepin as a separate process.
type Server struct {
	config     Config
	file       *config.ServeConfig
	containerd *containerd
	dispatcher *dispatcher
	notify     notifier
	locked     map[string]*os.File // directories
	service    *node.Service       // nil until containerd is connected
	backend    *backend            // of the service

	mu    sync.Mutex
	ready error // nil while calls are answered
}

// Run serves until ctx ends. It returns an error if the configuration is invalid or imagepin cannot run on this node.
// It does not return an error if containerd is not running, but waits for it.
func Run(ctx context.Context, c Config) (err error) {
	s := &Server{config: c, locked: make(map[string]*os.File), ready: errStarting}
	if s.file, err = c.Load(); err != nil {
		return err
	}
	if err := errors.Join(log.SetFormat(log.TextFormat), log.SetLevel(s.file.LogLevel)); err != nil {
		return err
	}
	tracing, stopTracing, err := startTracing(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer stopTracing()
	defer s.unlock()
	if err := os.MkdirAll(s.file.State, 0o700); err != nil {
		return err
	}
	if err := s.lock(s.file.State); err != nil {
		return err
	}
	if s.containerd, err = dialContainerd(s.file.ContainerdAddress, tracing); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.containerd.conn.Close()) }()
	stopHTTP, err := s.listenHTTP()
	if err != nil {
		return err
	}
	defer stopHTTP()
	l, err := listener(s.file.Address)
	if err != nil {
		return err
	}
	return s.serve(ctx, l, tracing)
}

// Ready returns the reason why calls are not answered; nil if they are.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// serve answers calls on a listener until ctx ends.
func (s *Server) serve(ctx context.Context, l net.Listener, tracing bool) error {
	cutStreams, streams := context.WithCancel(context.Background())
	cutAll, all := context.WithCancel(context.Background())
	defer streams()
	defer all()
	s.dispatcher = &dispatcher{cutStreams: cutStreams, cutAll: cutAll}
	s.dispatcher.unavailable(errStarting)
	options := []grpc.ServerOption{
		grpc.UnknownServiceHandler(s.dispatcher.handle),
		grpc.MaxRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
		// The caller limits the size of messages itself: kubelet and crictl use 16 MiB.
		grpc.MaxSendMsgSize(math.MaxInt32),
	}
	if tracing {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	server := grpc.NewServer(options...)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	log.G(ctx).WithField("address", l.Addr()).Info("listening for calls of the CRI")
	err := s.follow(ctx)
	s.notify.stopping()
	log.G(ctx).Info("imagepin is stopping")
	streams()
	grace := time.AfterFunc(stopGrace, all)
	server.GracefulStop()
	grace.Stop()
	if s.service != nil {
		s.service.Close()
	}
	return errors.Join(err, <-served)
}

// follow keeps the service connected to containerd, and reloads it when containerd or the configuration changes.
func (s *Server) follow(ctx context.Context) error {
	for {
		seen, err := s.waitForContainerd(ctx)
		if err == nil {
			err = s.replace(s.file, seen)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = s.run(ctx, seen)
			if ctx.Err() != nil {
				return nil
			}
			s.unavailable(ctx, fmt.Errorf("lost the connection to containerd: %w", err))
			continue
		}
		if s.service == nil {
			return err
		}
		// containerd was replaced or has another configuration. Both can be repaired without a restart of imagepin.
		s.unavailable(ctx, err)
		select {
		case <-ctx.Done():
			return nil
		case <-s.config.Reload:
			s.reload(ctx, nil)
		case <-time.After(probeTimeout):
		}
	}
}

// unavailable makes all calls fail with Unavailable.
func (s *Server) unavailable(ctx context.Context, why error) {
	log.G(ctx).WithError(why).Error("rejecting all calls")
	s.dispatcher.unavailable(why)
	s.setReady(why)
	s.notify.waiting(singleLine(why))
}

func (s *Server) setReady(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = err
}

// waitForContainerd waits until containerd and its CRI answer.
func (s *Server) waitForContainerd(ctx context.Context) (*state, error) {
	var last string
	var reported time.Time
	for interval := minProbeInterval; ; interval = min(2*interval, maxProbeInterval) {
		bounded, cancel := context.WithTimeout(ctx, probeTimeout)
		seen, err := s.containerd.probe(bounded)
		cancel()
		if err == nil || !isUnavailable(err) || ctx.Err() != nil {
			return seen, err
		}
		if text := singleLine(err); text != last || time.Since(reported) > startTimeoutExtension/2 {
			if text != last {
				log.G(ctx).WithError(err).Warn("waiting for containerd")
			}
			last, reported = text, time.Now() // the service manager is notified repeatedly
			s.dispatcher.unavailable(fmt.Errorf("waiting for containerd: %w", err))
			s.setReady(err)
			s.notify.waiting("waiting for " + text)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.config.Reload:
			s.reload(ctx, nil)
		case <-time.After(interval):
			s.containerd.conn.ResetConnectBackoff() // or gRPC waits a second and longer before it connects again
		}
	}
}

// replace reloads the service with a configuration and the state of containerd. If it fails, it changes nothing.
func (s *Server) replace(file *config.ServeConfig, seen *state) error {
	cri, err := file.Inherit(seen.running)
	if err != nil {
		return err
	}
	if err := s.lock(seen.root); err != nil {
		return err
	}
	setup := node.Setup{
		ContainerdVersion: seen.version, Settings: file.Settings, CRI: cri, ContentDir: seen.content, Snapshotters: seen.snapshotters, Verifiers: seen.imageVerifiers(file.Verifier),
	}
	if s.service == nil {
		err = s.start(file, setup)
	} else {
		err = s.service.Reload(setup)
	}
	if err != nil {
		return err
	}
	for _, w := range cri.Unsupported() {
		log.L.Warn(w)
	}
	if cri.SandboxImage() == "" {
		log.L.Warnf("[plugins.%q] pinned_images.sandbox is not set: containerd pulls the sandbox image, and it is not retained", config.ImagesSection)
	}
	s.dispatcher.connect(s.backend)
	return nil
}

// start creates the service.
func (s *Server) start(file *config.ServeConfig, setup node.Setup) error {
	n, err := node.New(node.Config{
		Mode: node.ModeServe, Containerd: s.containerd.services(), Setup: setup, NodeKey: filepath.Join(file.State, nodeKeyFile), Metrics: prometheus.DefaultRegisterer,
		Parts: s.config.Parts,
	})
	if err != nil {
		return err
	}
	service, err := n.Serve(cri.Remote(s.containerd.conn))
	if err != nil {
		return err
	}
	s.backend, err = backendOf(service, s.containerd.conn)
	if err == nil {
		s.service = service
	}
	return err
}

// run runs the service, including reloads, until it loses containerd's events or ctx ends.
func (s *Server) run(ctx context.Context, seen *state) error {
	lost := make(chan error, 1)
	go func() { lost <- s.service.Run(ctx) }()
	for {
		s.logHandlers(ctx, seen)
		ready := s.service.Ready()
		for replaced := false; !replaced; {
			select {
			case <-ready:
				ready = nil
				s.setReady(nil)
				s.notify.serving("serving images of containerd " + seen.version)
				debug.FreeOSMemory() // building the index leaves several times its size
			case err := <-lost:
				if err == nil && ctx.Err() == nil {
					s.uninstalled(ctx)
				}
				return err
			case <-s.config.Reload:
				replaced = s.reload(ctx, seen)
			}
		}
	}
}

// uninstalled waits until ctx ends while all calls are forwarded to containerd.
func (s *Server) uninstalled(ctx context.Context) {
	s.notify.waiting("uninstalled: forwarding all calls to containerd")
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.config.Reload:
			log.G(ctx).Warn("the configuration is not reloaded: imagepin is uninstalled")
		}
	}
}

// logHandlers logs the target of each runtime handler.
func (s *Server) logHandlers(ctx context.Context, seen *state) {
	for _, rt := range s.service.Runtimes() {
		log.G(ctx).WithFields(log.Fields{"handler": rt.Handler, "target": rt.Target.String()}).Info("runtime handler of containerd")
	}
	log.G(ctx).WithField("version", seen.version).Info("connected to containerd")
}

// reload reads the configuration again. If seen is not nil, it also reloads the service, and reports whether it did. An
// invalid configuration is logged and changes nothing.
func (s *Server) reload(ctx context.Context, seen *state) (replaced bool) {
	s.notify.reloading()
	file, err := s.config.Load()
	if err == nil {
		err = checkRestartKeys(s.file, file)
	}
	if err == nil && seen != nil {
		err = s.replace(file, seen)
		replaced = err == nil
	}
	if err == nil {
		err = log.SetLevel(file.LogLevel)
		s.file = file
	}
	if err != nil {
		log.G(ctx).WithError(err).Error("the configuration is not reloaded")
		if s.notify.ready {
			s.notify.serving("the configuration was not reloaded: " + singleLine(err))
		}
		return replaced
	}
	log.G(ctx).Info("the configuration is reloaded")
	if s.notify.ready && !replaced {
		s.notify.serving("waiting for containerd")
	}
	return replaced
}

// checkRestartKeys fails if a new configuration changes a key that requires a restart.
func checkRestartKeys(old, file *config.ServeConfig) error {
	for key, pair := range map[string][2]any{
		"address":            {old.Address, file.Address},
		"containerd_address": {old.ContainerdAddress, file.ContainerdAddress},
		"state":              {old.State, file.State},
		"metrics":            {old.Metrics, file.Metrics},
		"debug":              {old.Debug, file.Debug},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			return fmt.Errorf("%s: cannot change without a restart", key)
		}
	}
	return nil
}

// lock locks a directory against other processes.
func (s *Server) lock(dir string) error {
	if s.locked[dir] != nil {
		return nil
	}
	f, err := lockDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		// In a container, containerd's root may not be visible.
		log.L.WithError(err).Warn("cannot check whether another imagepin serve uses this containerd")
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	s.locked[dir] = f
	return nil
}

func (s *Server) unlock() {
	for _, f := range s.locked {
		_ = f.Close()
	}
}
