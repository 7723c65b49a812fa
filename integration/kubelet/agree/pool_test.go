package agree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// poolLabel is the label of nodes with the name of their pool.
const poolLabel = "pool"

// poolOptions are the options of a pool.
type poolOptions struct {
	nodes int
	// timeout is how long imagepin waits for the API server. Empty means 30 seconds, so that no node pins provisionally
	// because the machine is busy.
	timeout string
	// cluster is TOML for imagepin's section cluster.
	cluster string
	// staticPods makes kubelet run the static pods in [member.staticPods].
	staticPods bool
	// binary is the containerd. Empty means [node.Ours].
	binary string
	// env is added to the environment of containerd.
	env []string
}

// pool is nodes that run only the pods of a test, or of several tests.
type pool struct {
	name    string
	reg     *registry.Registry // has the sandbox image
	members []*member
}

// member is a node: a containerd with imagepin, and a kubelet with the credential of the node.
type member struct {
	*node.Node
	name string
	k    *cluster.Kubelet
	// link is imagepin's way to the API server. kubelet has a connection of its own.
	link *cluster.Link
	// certificate is the file with imagepin's credential.
	certificate string
}

// members is the number of nodes that were created. Each has a name of its own.
var members atomic.Int32

// startPool starts nodes and waits until they are ready.
func startPool(ctx context.Context, name string, opts poolOptions) (_ *pool, err error) {
	p := &pool{name: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.reg, err = registry.New(); err != nil {
		return nil, err
	}
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := p.reg.Push(testkit.PauseRef, pause); err != nil {
		return nil, err
	}
	for range opts.nodes {
		m, err := newMember(p, opts)
		if err != nil {
			return nil, err
		}
		p.members = append(p.members, m)
	}
	errs := make([]error, len(p.members))
	var started sync.WaitGroup
	for i, m := range p.members {
		started.Go(func() { errs[i] = m.start(ctx, p, opts) })
	}
	started.Wait()
	return p, errors.Join(errs...)
}

func newMember(p *pool, opts poolOptions) (*member, error) {
	n, err := node.New(node.Options{
		Binary: opts.binary, SandboxImage: p.reg.Ref(testkit.PauseRef), LogLevel: "info",
		// kubelet requires a runc with seccomp.
		Env: append([]string{"PATH=" + filepath.Dir(cluster.Bin("runc")) + ":" + node.BinDir() + ":" + os.Getenv("PATH")}, opts.env...),
		Extra: `
[plugins."io.containerd.imagepin.v1.images"]
version_consistency = "workload"
[plugins."io.containerd.imagepin.v1.images".cluster]
kubeconfig = "{root}/imagepin-api/kubeconfig"
timeout = "` + cmp.Or(opts.timeout, "30s") + `"
` + opts.cluster,
	})
	if err != nil {
		return nil, err
	}
	m := &member{Node: n, name: fmt.Sprintf("n%d", members.Add(1))}
	if m.link, err = kube.Link(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if m.certificate, err = kube.WriteNodeKubeconfig(n.Path("imagepin-api", "kubeconfig"), m.name, m.link.Addr()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return m, nil
}

func (m *member) start(ctx context.Context, p *pool, opts poolOptions) error {
	if err := m.Start(ctx); err != nil {
		return err
	}
	kubeconfig := m.Path("kubelet-api", "kubeconfig")
	if _, err := kube.WriteNodeKubeconfig(kubeconfig, m.name, ""); err != nil {
		return err
	}
	kubelet := cluster.KubeletOptions{Kubeconfig: kubeconfig, Labels: poolLabel + "=" + p.name, Config: map[string]any{}}
	if opts.staticPods {
		if err := os.Mkdir(m.staticPods(), 0o755); err != nil {
			return err
		}
		kubelet.Config["staticPodPath"] = m.staticPods()
	}
	var err error
	m.k, err = kube.StartKubelet(ctx, m.name, m.Node, kubelet)
	return err
}

// staticPods is the directory of the manifests of static pods.
func (m *member) staticPods() string { return m.Path("static") }

func (p *pool) close() error {
	var errs []error
	for _, m := range p.members {
		if m.k != nil {
			errs = append(errs, m.k.Close())
		}
		errs = append(errs, m.Node.Close())
		m.link.Cut()
	}
	if p.reg != nil {
		p.reg.Close()
	}
	return errors.Join(errs...)
}

// newPool starts nodes for one test.
func newPool(t *testing.T, name string, opts poolOptions) *pool {
	t.Helper()
	p, err := startPool(testkit.Context(t), fmt.Sprintf("%s-%d", name, members.Load()), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Errorf("close the nodes: %v", err)
		}
	})
	return p
}

// cordon makes the scheduler use a node, or not. Its pods keep running.
func (m *member) cordon(t *testing.T, cordoned bool) {
	t.Helper()
	change := map[string]any{"spec": map[string]any{"unschedulable": cordoned}}
	if err := kube.Do(testkit.Context(t), "PATCH", "/api/v1/nodes/"+m.name, change, nil); err != nil {
		t.Fatal(err)
	}
}

// awaitPin waits until the node has exactly one pin of a reference for an owner, and a condition holds for it.
func (m *member) awaitPin(t *testing.T, ref string, owner types.UID, what string, done func(*api.Pin) bool) {
	t.Helper()
	testkit.EventuallyIn(t, patience, fmt.Sprintf("the pin of %s on %s %s", ref, m.name, what), func(ctx context.Context) (bool, error) {
		resp, err := api.NewControlClient(m.Conn()).Pins(ctx, &api.PinsRequest{RefGlob: ref})
		if err != nil {
			return false, err
		}
		var found []*api.Pin
		for _, p := range resp.Pins {
			if owner == "" || strings.Contains(p.Scope, string(owner)) {
				found = append(found, p)
			}
		}
		return len(found) == 1 && done(found[0]), nil
	})
}

func provisional(p *api.Pin) bool { return p.Provisional }

// settled returns a condition for a copy of an ImagePin.
func settled(digest string) func(*api.Pin) bool {
	return func(p *api.Pin) bool { return !p.Provisional && p.Root.GetDigest() == digest }
}
