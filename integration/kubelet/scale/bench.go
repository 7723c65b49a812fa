package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/measure"
)

// bench is one run.
type bench struct {
	sizes
	out     io.Writer // progress
	results results
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// measure runs all parts. failed has the checks that failed. It removes everything, also if it fails.
func (b *bench) measure(ctx context.Context) (failed, err error) {
	if err := allowFiles(b.agents + b.heartbeats); err != nil {
		return nil, err
	}
	kube, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := kube.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up: %w", e))
			return
		}
		b.say("cleaned up")
	}()
	b.say("etcd and the API server run below %s", kube.Dir())
	if b.results.about, err = about(ctx, kube, b.sizes); err != nil {
		return nil, err
	}
	// Before the agents, because a node does not share its processors with those of other nodes.
	if b.results.starts, err = b.podStarts(ctx, kube); err != nil {
		return nil, fmt.Errorf("starting pods: %w", err)
	}
	if b.results.stored, err = b.store(ctx, kube); err != nil {
		return nil, fmt.Errorf("storing ImagePins: %w", err)
	}
	return b.claims(ctx, kube)
}

// claims measures the heartbeats alone, the connections of the agents, and each scenario.
func (b *bench) claims(ctx context.Context, kube *server) (failed, err error) {
	b.say("creating %s nodes", measure.Thousands(b.agents))
	all, err := newAgents(ctx, kube, b.agents)
	if err != nil {
		return nil, fmt.Errorf("creating the nodes: %w", err)
	}
	defer all.disconnect()
	hearts, err := startHeartbeats(ctx, kube, b.heartbeats, b.period)
	if err != nil {
		return nil, fmt.Errorf("starting the heartbeats: %w", err)
	}
	defer hearts.stop()
	b.say("heartbeats alone")
	alone, err := b.heartbeatsAlone(ctx, kube, hearts)
	if err != nil {
		return nil, err
	}
	b.say("connecting the agents")
	connecting, err := b.connect(ctx, kube, hearts, all)
	if err != nil {
		return nil, fmt.Errorf("connecting the agents: %w", err)
	}
	b.results.columns = append(b.results.columns, alone, connecting)
	var checks []error
	for i, s := range scenarios(b.sizes) {
		column, failed, err := b.scenario(ctx, kube, hearts, all, i, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if failed != nil {
			checks = append(checks, fmt.Errorf("%s: %w", s.name, failed))
		}
		b.results.columns = append(b.results.columns, column)
	}
	peak, err := measure.PeakRSS(os.Getpid())
	if err != nil {
		return nil, err
	}
	b.say("the maximum memory of this process was %s", measure.Megabytes(peak))
	return errors.Join(checks...), nil
}

// about describes the machine and its load, the API server and the sizes.
func about(ctx context.Context, kube *server, z sizes) (string, error) {
	machine, err := measure.Machine()
	if err != nil {
		return "", err
	}
	var version struct{ GitVersion string }
	if err := kube.Do(ctx, "GET", "/version", nil, &version); err != nil {
		return "", err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	minute, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%s, load average %s before; Kubernetes %s; %s agents, %s nodes with heartbeats", machine, minute,
		version.GitVersion, measure.Thousands(z.agents), measure.Thousands(z.heartbeats)), nil
}

// startServer starts etcd and an API server that serves ImagePins.
func startServer(ctx context.Context) (*server, error) {
	c, err := cluster.Start(ctx, cluster.Options{Authorize: true})
	if err != nil {
		return nil, err
	}
	s := &server{Cluster: c}
	if err := s.install(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
