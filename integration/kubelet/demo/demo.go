package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/script"
)

// tag is the image of the demo.
const tag = "shop/web:stable"

// demo is one run.
type demo struct {
	out   io.Writer
	began time.Time

	reg   *registry.Registry
	kube  *cluster.Cluster
	nodes *pool.Pool
}

// run runs the steps. It always cleans up.
func (d *demo) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	steps := []struct {
		heading string
		do      func(context.Context) error
	}{
		{"Start a cluster with three nodes, without imagepin", d.start},
		{"Without imagepin: move the tag in the middle of a rollout", d.without},
		{"Install imagepin on the nodes, and ImagePins in the cluster", d.install},
		{"With imagepin: move the tag in the middle of a rollout", d.with},
		{"Roll out the next revision, then undo it", d.undo},
	}
	for i, s := range steps {
		d.say("\n%d. %s\n", i+1, s.heading)
		err := s.do(ctx)
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = cause
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	d.say("Result after %s: without imagepin, one revision ran two builds. With imagepin, each revision ran one.", time.Since(d.began).Round(time.Second))
	return nil
}

// close stops everything that the demo started. It can be called at any time.
func (d *demo) close() error {
	var errs []error
	if d.nodes != nil {
		errs = append(errs, d.nodes.Close())
	}
	if d.kube != nil {
		errs = append(errs, d.kube.Close())
	}
	if d.reg != nil {
		d.reg.Close()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	d.say("\nCleaned up: no process, mount or file is left.")
	return nil
}

// say prints a paragraph.
func (d *demo) say(format string, args ...any) { script.Say(d.out, format, args...) }

// controllers are those of Deployments and nodes, and the one that deletes ImagePins with their owners.
var controllers = []string{"deployment-controller", "replicaset-controller", "node-lifecycle-controller", "garbage-collector-controller"}

// start is the first step.
func (d *demo) start(ctx context.Context) (err error) {
	if d.reg, err = registry.New(); err != nil {
		return err
	}
	if d.kube, err = cluster.Start(ctx, cluster.Options{Authorize: true}); err != nil {
		return err
	}
	if err := errors.Join(d.kube.StartControllers(controllers...), d.kube.StartScheduler()); err != nil {
		return err
	}
	if d.nodes, err = pool.Start(ctx, d.kube, "demo", pool.Options{Nodes: 3, Binary: node.Stock}); err != nil {
		return err
	}
	var server struct{ GitVersion string }
	if err := d.kube.Do(ctx, "GET", "/version", nil, &server); err != nil {
		return err
	}
	containerd, err := d.nodes.Members[0].Client().Version(ctx)
	if err != nil {
		return err
	}
	d.say("   Kubernetes  %s: etcd, API server, controller manager and scheduler, below %s", server.GitVersion, d.kube.Dir())
	for _, m := range d.nodes.Members {
		d.say("   node %-6s kubelet %s, containerd %s, below %s", m.Name, server.GitVersion, containerd.Version, m.Root())
	}
	d.say("   registry    %s", d.reg.Host())
	return nil
}

// install is the third step.
func (d *demo) install(ctx context.Context) error {
	if err := d.installImagePins(ctx); err != nil {
		return err
	}
	for _, m := range d.nodes.Members {
		// The API server shares the machine with everything else, so that it can be slow.
		err := m.Restart(ctx, func(o *node.Options) { o.Binary, o.Extra = node.Ours, pool.Claims("30s", "") })
		if err != nil {
			return fmt.Errorf("restarting containerd on %s: %w", m.Name, err)
		}
	}
	containerd, err := d.nodes.Members[0].Client().Version(ctx)
	if err != nil {
		return err
	}
	d.say("   containerd on the nodes is now %s. Its section cluster has a kubeconfig.", containerd.Version)
	return nil
}

// push moves the tag to a version.
func (d *demo) push(ctx context.Context, version string) error {
	idx, err := images.AppIndex(ctx, images.Options{Version: version}, images.HostPlatform())
	if err != nil {
		return err
	}
	_, err = d.reg.Push(tag, idx)
	return err
}
