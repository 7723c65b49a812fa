package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	claim "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const (
	// claimTimeout is the timeout of the agents' calls. It is longer than a burst of claims takes, so that no claim fails.
	// The default of imagepin is shorter: a node whose claim takes longer makes a provisional pin.
	claimTimeout = 10 * time.Minute
	// retryPause is the time after which an agent claims again if it got an error, as kubelet tries again.
	retryPause = time.Second
	// recheck is the default of imagepin.
	recheck = time.Minute
)

// agent is a node, as far as it claims ImagePins.
type agent struct {
	name       string
	kubeconfig string
	digest     digest.Digest // what its registry says for the tag
	tally      *tally

	client *client.Client
	claims *claim.Claims
	stop   func() // stops sending Events
}

// agents are all agents. They count in one tally.
type agents struct {
	*tally
	all []*agent
}

// newAgents creates nodes, with a credential each.
func newAgents(ctx context.Context, kube *server, n int) (*agents, error) {
	as := &agents{tally: &tally{}, all: make([]*agent, n)}
	err := parallel(ctx, n, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("node-%05d", i)
		a := &agent{
			name: name, kubeconfig: filepath.Join(kube.Dir(), "agents", name, "kubeconfig"),
			digest: digestOf(name), tally: as.tally,
		}
		as.all[i] = a
		if err := kube.Do(ctx, "POST", "/api/v1/nodes", &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}, nil); err != nil {
			return err
		}
		_, err := kube.WriteNodeKubeconfig(a.kubeconfig, name, "")
		return err
	})
	if err != nil {
		return nil, err
	}
	return as, as.connect()
}

// digestOf returns a digest that is different for each name.
func digestOf(name string) digest.Digest { return digest.FromString(name) }

// connect gives each agent a new client, without a connection, as at the start of containerd.
func (as *agents) connect() error {
	for _, a := range as.all {
		if err := a.connect(); err != nil {
			return err
		}
	}
	return nil
}

// disconnect closes the clients and their connections.
func (as *agents) disconnect() {
	var closed sync.WaitGroup
	for _, a := range as.all {
		closed.Go(a.disconnect)
	}
	closed.Wait()
}

func (a *agent) connect() (err error) {
	if a.client, err = client.New(client.Config{Kubeconfig: a.kubeconfig, Timeout: claimTimeout}); err != nil {
		return err
	}
	reporter := claim.NewReporter(counted{a.client, a.tally}, claim.EventDelay)
	a.claims = claim.NewClaims(claim.ClaimsConfig{API: a.client, Observer: a.tally, Reporter: reporter, Recheck: recheck})
	ctx, cancel := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	sending.Go(func() { reporter.Run(ctx) })
	a.stop = func() {
		cancel()
		sending.Wait()
	}
	return nil
}

func (a *agent) disconnect() {
	if a.client == nil {
		return
	}
	a.stop()
	_ = a.client.Close() // returns no error
	a.client = nil
}

// open opens the connection of the agent, by reading the owner of a pod.
func (a *agent) open(ctx context.Context, pod policy.Pod) error {
	_, err := a.client.OwnerOf(ctx, client.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: uid(pod)})
	return err
}

// claim returns the digest of the ImagePin of an image for the owner of a pod, with the calls of a pull. If the API server
// is unavailable, it tries again until ctx ends. first is the error of the first attempt.
func (a *agent) claim(ctx context.Context, pod policy.Pod, image string) (d digest.Digest, first, err error) {
	for {
		d, err = a.attempt(ctx, pod, image)
		if first == nil {
			first = err
		}
		if !errdefs.IsUnavailable(err) {
			return d, first, err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return "", first, err
		}
	}
}

func (a *agent) attempt(ctx context.Context, pod policy.Pod, image string) (digest.Digest, error) {
	if d, err := a.claims.Lookup(ctx, pod, image, false); err != nil || d != "" {
		return d, err
	}
	return a.claims.Claim(ctx, pod, image, a.digest)
}
