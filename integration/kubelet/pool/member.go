package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

// Member is a node: a containerd, and a kubelet with the credential of the node.
type Member struct {
	*node.Node
	Name    string
	Kubelet *cluster.Kubelet
	// Link is imagepin's way to the API server. kubelet has a connection of its own.
	Link *cluster.Link
	// Certificate is the file with imagepin's credential.
	Certificate string
	options     cluster.KubeletOptions
}

// members is the number of nodes that were created. Each has a name of its own.
var members atomic.Int32

// Claims returns the configuration with which imagepin claims ImagePins as the node. timeout is a duration. more is TOML
// for the section cluster.
func Claims(timeout, more string) string {
	return `
[plugins."io.containerd.imagepin.v1.images"]
version_consistency = "workload"
[plugins."io.containerd.imagepin.v1.images".cluster]
kubeconfig = "{root}/imagepin-api/kubeconfig"
timeout = "` + timeout + `"
` + more
}

func newMember(c *cluster.Cluster, sandboxImage string, i int, opts Options) (_ *Member, err error) {
	m := &Member{Name: fmt.Sprintf("n%d", members.Add(1))}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	// kubelet requires a runc with seccomp.
	path := "PATH=" + filepath.Dir(cluster.Bin("runc")) + ":" + node.BinDir() + ":" + os.Getenv("PATH")
	options := node.Options{
		Binary: opts.Binary, SandboxImage: sandboxImage, LogLevel: "info", Env: append([]string{path}, opts.Env...), Extra: opts.Config,
	}
	if opts.Edit != nil {
		opts.Edit(i, &options)
	}
	if m.Node, err = node.New(options); err != nil {
		return nil, err
	}
	if m.Link, err = c.Link(); err != nil {
		return nil, err
	}
	m.Certificate, err = c.WriteNodeKubeconfig(m.Path("imagepin-api", "kubeconfig"), m.Name, m.Link.Addr())
	return m, err
}

func (m *Member) start(ctx context.Context, c *cluster.Cluster, pool string, i int, opts Options) error {
	if err := m.Start(ctx); err != nil {
		return err
	}
	kubeconfig := m.Path("kubelet-api", "kubeconfig")
	if _, err := c.WriteNodeKubeconfig(kubeconfig, m.Name, ""); err != nil {
		return err
	}
	m.options = cluster.KubeletOptions{Kubeconfig: kubeconfig, Labels: Label + "=" + pool, Config: map[string]any{}}
	if opts.StaticPods {
		if err := os.Mkdir(m.StaticPods(), 0o755); err != nil {
			return err
		}
		m.options.Config["staticPodPath"] = m.StaticPods()
	}
	if opts.Kubelet != nil {
		opts.Kubelet(i, m.options.Config)
	}
	var err error
	m.Kubelet, err = c.StartKubelet(ctx, m.Name, m.Node, m.options)
	return err
}

// RestartAll kills the node's containerd, with imagepin serve if there is one, stops kubelet, and starts all again.
func (m *Member) RestartAll(ctx context.Context) error {
	if err := errors.Join(m.Kubelet.Stop(), m.Kill9()); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	return m.Kubelet.Start(ctx, m.options)
}

// StaticPods is the directory of the manifests of static pods.
func (m *Member) StaticPods() string { return m.Path("static") }

func (m *Member) close() error {
	var errs []error
	if m.Kubelet != nil {
		errs = append(errs, m.Kubelet.Close())
	}
	if m.Node != nil {
		errs = append(errs, m.Node.Close())
	}
	if m.Link != nil {
		m.Link.Cut()
	}
	return errors.Join(errs...)
}
