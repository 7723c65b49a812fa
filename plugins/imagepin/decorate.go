package imagepin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"google.golang.org/grpc"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

const (
	criPlugin       = "cri"
	criImagesPlugin = "images"
)

// Decorate puts imagepin in front of containerd's CRI plugin. It is called once, before containerd loads its plugins.
// It fails if this containerd has no CRI plugin.
//
// Decorate wraps the registered CRI plugins. imagepin is served in its place on containerd's own sockets, and forwards
// calls to the instance of the CRI plugin. If the imagepin plugin is disabled, containerd's CRI is unchanged. If the
// imagepin plugin fails to load, no CRI is served, because a node that is configured to pin images must not start other
// ones.
func Decorate() error {
	var found, images *plugin.Registration
	registry.Graph(func(r *plugin.Registration) bool {
		switch {
		case r.Type == plugins.GRPCPlugin && r.ID == criPlugin:
			found = r
		case r.Type == plugins.CRIServicePlugin && r.ID == criImagesPlugin:
			images = r
		}
		return true
	})
	if found == nil {
		return fmt.Errorf("imagepin: plugin %s.%s is not built in", plugins.GRPCPlugin, criPlugin)
	}
	found.Requires = append(slices.Clone(found.Requires), Type)
	s := &start{}
	found.InitFn = s.decorated(found.InitFn)
	if images != nil {
		images.InitFn = s.criImages(images.InitFn)
	}
	return nil
}

type initFunc = func(*plugin.InitContext) (any, error)

func (s *start) decorated(upstream initFunc) initFunc {
	return func(ic *plugin.InitContext) (any, error) {
		p := ic.Plugins().Get(Type, ID)
		if p == nil {
			log.G(ic.Context).Info("imagepin is disabled: serving containerd's own CRI")
			s.end()
			return upstream(ic)
		}
		instance, err := p.Instance()
		if err != nil {
			// containerd logs an error of a plugin only as a warning.
			log.G(ic.Context).WithError(err).Error("not serving the CRI, because imagepin failed to load")
			return nil, fmt.Errorf("not serving the CRI, because imagepin failed to load (to run without imagepin, add %q to disabled_plugins): %w", config.Section, err)
		}
		return s.serve(ic, instance.(*node.Node), upstream)
	}
}

// registrar is a plugin instance with a gRPC service, as containerd's server plugin uses it.
type registrar interface {
	Register(*grpc.Server) error
}

// tcpRegistrar is also served on containerd's TCP address.
type tcpRegistrar interface {
	RegisterTCP(*grpc.Server) error
}

// front replaces the instance of containerd's CRI plugin.
type front struct {
	service *node.Service
	close   []func() error
}

// Register implements containerd's gRPC service interface.
func (f *front) Register(s *grpc.Server) error {
	return f.service.Register(s)
}

// Close ends imagepin and then upstream.
func (f *front) Close() error {
	var errs []error
	for _, c := range f.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// frontWithTCP is a front with the CRI on TCP enabled.
type frontWithTCP struct{ *front }

// RegisterTCP implements containerd's gRPC service interface for TCP, without the control service.
func (f frontWithTCP) RegisterTCP(s *grpc.Server) error { return f.service.RegisterCRI(s) }

// headStart is the maximum time that the start of containerd's CRI waits until the index is built. When the CRI starts,
// it reads all images at once, and reading the records at the same time would take several times as long. The CRI would
// also read each image that is adopted again. The limit is for a snapshotter that hangs, and for very many images to adopt.
const headStart = 3 * time.Second

// serve creates the upstream CRI service, and puts the node's imagepin in front of it.
func (s *start) serve(ic *plugin.InitContext, n *node.Node, upstream initFunc) (_ any, err error) {
	conn := newLocal()
	service, err := n.Serve(conn)
	if err != nil {
		return nil, fmt.Errorf("imagepin: %w", err)
	}
	ctx, cancel := context.WithCancel(ic.Context)
	var following sync.WaitGroup
	following.Go(func() { service.Follow(ctx) })
	f := &front{service: service, close: []func() error{func() error { cancel(); following.Wait(); return nil }, conn.Close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	select {
	case <-service.Ready():
	case <-time.After(headStart):
	}
	inner, upstreamReady, created := watchReadiness(ic)
	made, err := upstream(inner)
	if err != nil {
		return nil, err
	}
	created()
	following.Go(func() { s.endAfter(ctx, service.Ready(), upstreamReady) })
	if c, ok := made.(io.Closer); ok {
		f.close = append(f.close, c.Close)
	}
	registered, ok := made.(registrar)
	if !ok {
		return nil, fmt.Errorf("imagepin: containerd's CRI plugin is a %T, which has no gRPC service", made)
	}
	if err := conn.connect(registered); err != nil {
		return nil, err
	}
	if _, ok := made.(tcpRegistrar); ok {
		return frontWithTCP{f}, nil
	}
	return f, nil
}
