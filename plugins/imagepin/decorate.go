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

const criPlugin = "cri"

// Decorate puts imagepin in front of containerd's CRI plugin. It is called once,
// before containerd loads its plugins. It fails where this containerd has no
// CRI plugin.
//
// The CRI plugin is wrapped where it is registered. imagepin is served in its place on containerd's own sockets, and
// passes calls on to what the plugin makes. Where our plugin is disabled, containerd's CRI stays as it is; where it fails
// to load, there is no CRI, because a node that was configured to pin images must not start others.
func Decorate() error {
	var found *plugin.Registration
	registry.Graph(func(r *plugin.Registration) bool {
		if r.Type == plugins.GRPCPlugin && r.ID == criPlugin {
			found = r
		}
		return true
	})
	if found == nil {
		return fmt.Errorf("imagepin: plugin %s.%s is not built in", plugins.GRPCPlugin, criPlugin)
	}
	found.Requires = append(slices.Clone(found.Requires), Type)
	found.InitFn = decorated(found.InitFn)
	return nil
}

type initFunc = func(*plugin.InitContext) (any, error)

func decorated(behind initFunc) initFunc {
	return func(ic *plugin.InitContext) (any, error) {
		p := ic.Plugins().Get(Type, ID)
		if p == nil {
			log.G(ic.Context).Info("imagepin is disabled: containerd's CRI is served as it is")
			return behind(ic)
		}
		instance, err := p.Instance()
		if err != nil {
			return nil, fmt.Errorf("the CRI is not served without imagepin, which failed to load (to go without it, add %q to disabled_plugins): %w", config.Section, err)
		}
		return serve(ic, instance.(*node.Node), behind)
	}
}

// registrar is a plugin instance that has a gRPC service, as containerd's
// server plugin knows it.
type registrar interface {
	Register(*grpc.Server) error
}

// tcpRegistrar also serves on containerd's TCP address.
type tcpRegistrar interface {
	RegisterTCP(*grpc.Server) error
}

// front is what containerd gets in place of its CRI plugin's instance.
type front struct {
	service *node.Service
	close   []func() error
}

// Register implements containerd's gRPC service interface.
func (f *front) Register(s *grpc.Server) error {
	return f.service.Register(s)
}

// Close ends imagepin and then the CRI service behind.
func (f *front) Close() error {
	var errs []error
	for _, c := range f.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// frontWithTCP is a front where the CRI is enabled on TCP.
type frontWithTCP struct{ *front }

// RegisterTCP implements containerd's gRPC service interface for TCP, on which
// there is nothing for operators.
func (f frontWithTCP) RegisterTCP(s *grpc.Server) error { return f.service.RegisterCRI(s) }

// headStart is how long containerd's CRI is not begun with, at most, while what is
// recorded is read. It reads every image itself when it starts, all at once, and
// what has to compete with that takes several times as long. A snapshotter that
// hangs does not hold containerd up for longer.
const headStart = 3 * time.Second

// serve makes the CRI service behind, and puts the node's imagepin in front.
func serve(ic *plugin.InitContext, n *node.Node, behind initFunc) (_ any, err error) {
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
	case <-service.Loaded():
	case <-time.After(headStart):
	}
	made, err := behind(ic)
	if err != nil {
		return nil, err
	}
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
