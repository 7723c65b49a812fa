// Package pool starts nodes of a cluster that run only the pods of one user, such as a test.
package pool

import (
	"context"
	"errors"
	"sync"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// Label is the label of nodes with the name of their pool.
const Label = "pool"

// pauseTag is the sandbox image.
const pauseTag = "pause:3.10"

// Options are the options of the nodes of a pool. The zero value means [node.Ours] without imagepin's configuration.
type Options struct {
	// Nodes is the number of nodes.
	Nodes int
	// Binary is the containerd, see [node.Options].
	Binary string
	// Config is TOML for containerd, see [node.Options] and [Claims].
	Config string
	// StaticPods makes kubelet run the static pods in [Member.StaticPods].
	StaticPods bool
	// Env is added to the environment of containerd.
	Env []string
	// Edit changes the options of a node, which is the ith of the pool. It can be nil.
	Edit func(i int, o *node.Options)
	// Kubelet changes the configuration of the kubelet of the ith node. It can be nil.
	Kubelet func(i int, config map[string]any)
}

// Pool is a number of nodes, and the registry with their sandbox image.
type Pool struct {
	Name    string
	Members []*Member
	reg     *registry.Registry
}

// Start starts nodes and waits until they are ready.
func Start(ctx context.Context, c *cluster.Cluster, name string, opts Options) (_ *Pool, err error) {
	p := &Pool{Name: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.reg, err = registry.New(); err != nil {
		return nil, err
	}
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := p.reg.Push(pauseTag, pause); err != nil {
		return nil, err
	}
	for i := range opts.Nodes {
		m, err := newMember(c, p.reg.Ref(pauseTag), i, opts)
		if err != nil {
			return nil, err
		}
		p.Members = append(p.Members, m)
	}
	errs := make([]error, len(p.Members))
	var started sync.WaitGroup
	for i, m := range p.Members {
		started.Go(func() { errs[i] = m.start(ctx, c, name, i, opts) })
	}
	started.Wait()
	return p, errors.Join(errs...)
}

// Close stops the nodes and removes what they wrote.
func (p *Pool) Close() error {
	errs := make([]error, len(p.Members))
	var closed sync.WaitGroup
	for i, m := range p.Members {
		closed.Go(func() { errs[i] = m.close() })
	}
	closed.Wait()
	if p.reg != nil {
		p.reg.Close()
	}
	return errors.Join(errs...)
}
