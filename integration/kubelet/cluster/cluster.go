// Package cluster runs a small Kubernetes cluster for tests: etcd and an API server on the loopback interface, and any
// number of nodes, each a containerd under test with a kubelet. There is no network plugin: pods use the host's network.
// Without [Cluster.StartScheduler], pods name their node.
package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/port"
)

// token is the credential of the API server. It is not secret, because the API server serves only tests on loopback.
const token = "test"

// Options are the options of a cluster. The zero value permits all requests.
type Options struct {
	// Authorize makes the API server authorize requests as clusters do: those of nodes with the Node authorizer and
	// NodeRestriction, all others with RBAC.
	Authorize bool
	// EmulatedVersion is the version of Kubernetes that the API server emulates, for example 1.34. The default is its own
	// version.
	EmulatedVersion string
	// LinkEtcd puts a [Link] between the API server and etcd, see [Cluster.EtcdLink].
	LinkEtcd bool
}

// Cluster is an etcd and an API server. Its requests have all permissions.
type Cluster struct {
	*Client
	dir     string
	users   *authority
	daemons []*daemon.Daemon // in the order of their start
	server  *daemon.Daemon   // the API server, which is not one of daemons
	args    []string         // of the API server

	etcd     *daemon.Daemon // one of daemons
	etcdArgs []string
	etcdURL  string
	etcdLink *Link // nil without Options.LinkEtcd

	mu    sync.Mutex
	ports []*port.Reservation
}

// Bin returns the path of a binary that hack/kubernetes-binaries.sh builds.
func Bin(name string) string { return filepath.Join(node.BinDir(), "kubernetes", name) }

// Start starts a cluster and waits until it is ready.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	for _, name := range []string{"etcd", "kube-apiserver", "kubelet", "runc"} {
		if _, err := os.Stat(Bin(name)); err != nil {
			return nil, fmt.Errorf("%w; run hack/kubernetes-binaries.sh", err)
		}
	}
	dir, err := node.TempDir()
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, Client: newClient()}
	c.token = token
	if err := c.start(ctx, opts); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, opts Options) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ports, err := c.reservePorts(3)
	if err != nil {
		return err
	}
	c.etcdURL = "http://127.0.0.1:" + ports[0]
	peer := "http://127.0.0.1:" + ports[1]
	c.etcdArgs = []string{
		"--unsafe-no-fsync", "--log-level=warn", "--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + c.etcdURL, "--advertise-client-urls=" + c.etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	}
	if c.etcd, err = c.run("etcd", c.etcdArgs...); err != nil {
		return err
	}
	etcd := c.etcdURL
	if opts.LinkEtcd {
		if c.etcdLink, err = c.link(strings.TrimPrefix(c.etcdURL, "http://")); err != nil {
			return err
		}
		etcd = "http://" + c.etcdLink.Addr()
	}
	if err := writeKey(c.path("sa.key")); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("tokens"), []byte(token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	if c.users, err = newAuthority(c.path("users.crt")); err != nil {
		return err
	}
	c.url = "https://127.0.0.1:" + ports[2]
	args := []string{
		"--bind-address=127.0.0.1", "--secure-port=" + ports[2], "--cert-dir=" + c.path("certs"),
		"--etcd-servers=" + etcd, "--service-cluster-ip-range=10.99.0.0/24", "--service-account-issuer=https://test",
		"--service-account-key-file=" + c.path("sa.key"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--token-auth-file=" + c.path("tokens"), "--client-ca-file=" + c.path("users.crt"),
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
	}
	if opts.Authorize {
		args = append(args, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	} else {
		args = append(args, "--authorization-mode=AlwaysAllow")
	}
	if opts.EmulatedVersion != "" {
		args = append(args, "--emulated-version="+opts.EmulatedVersion)
	}
	c.args = args
	if err := c.WriteKubeconfig(c.Kubeconfig(), ""); err != nil {
		return err
	}
	return c.StartServer(ctx)
}

// StartServer starts the API server again after [Cluster.KillServer], and waits until it is ready.
func (c *Cluster) StartServer(ctx context.Context) error {
	var err error
	if c.server, err = c.launch("kube-apiserver", c.args...); err != nil {
		return err
	}
	return c.server.Await(ctx, func(ctx context.Context) error {
		return errors.Join(c.Do(ctx, "GET", "/readyz", nil, nil), c.Do(ctx, "GET", "/api/v1/namespaces/default", nil, nil))
	})
}

// KillServer kills the API server with SIGKILL, and waits until it has exited.
func (c *Cluster) KillServer() error {
	if c.server == nil {
		return nil
	}
	return c.server.Kill9()
}

// StartEtcd starts etcd again after [Cluster.KillEtcd], with its data and its ports, and waits until it is ready. The API
// server connects to it some time later.
func (c *Cluster) StartEtcd(ctx context.Context) error {
	var err error
	if c.etcd, err = c.run("etcd", c.etcdArgs...); err != nil {
		return err
	}
	etcd := &Client{url: c.etcdURL, http: c.http}
	return c.etcd.Await(ctx, func(ctx context.Context) error { return etcd.Do(ctx, "GET", "/health", nil, nil) })
}

// KillEtcd kills etcd with SIGKILL, and waits until it has exited. It keeps what it has answered.
func (c *Cluster) KillEtcd() error { return c.etcd.Kill9() }

// launch starts a process that the caller ends.
func (c *Cluster) launch(name string, args ...string) (*daemon.Daemon, error) {
	cmd := exec.Command(Bin(name), args...)
	cmd.Dir = c.dir
	return daemon.Start(cmd, c.path(name+".log"))
}

// run starts a process that [Cluster.Close] ends.
func (c *Cluster) run(name string, args ...string) (*daemon.Daemon, error) {
	d, err := c.launch(name, args...)
	if err != nil {
		return nil, err
	}
	c.daemons = append(c.daemons, d)
	return d, nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// ServerPID returns the process ID of the API server.
func (c *Cluster) ServerPID() int { return c.server.PID() }

// EtcdPID returns the process ID of etcd.
func (c *Cluster) EtcdPID() int { return c.etcd.PID() }

// EtcdURL returns the URL of etcd, which also serves its metrics.
func (c *Cluster) EtcdURL() string { return c.etcdURL }

// EtcdLink returns the link between the API server and etcd, with [Options.LinkEtcd].
func (c *Cluster) EtcdLink() *Link { return c.etcdLink }

// Dir returns the directory of the cluster's files.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig returns the path of the cluster's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// Close stops the cluster and removes its files. Close its nodes first.
func (c *Cluster) Close() error {
	errs := []error{c.KillServer()}
	for _, d := range c.daemons {
		errs = append(errs, d.Kill9())
	}
	if c.etcdLink != nil {
		c.etcdLink.Cut()
	}
	for _, p := range c.ports {
		p.Close()
	}
	c.http.CloseIdleConnections()
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// StartControllers starts kube-controller-manager with some of its controllers. It does not wait until they run.
func (c *Cluster) StartControllers(names ...string) error {
	_, err := c.run("kube-controller-manager", "--kubeconfig="+c.Kubeconfig(), "--secure-port=0", "--leader-elect=false",
		"--controllers="+strings.Join(names, ","))
	return err
}

// StartScheduler starts kube-scheduler. It does not wait until it runs.
func (c *Cluster) StartScheduler() error {
	_, err := c.run("kube-scheduler", "--kubeconfig="+c.Kubeconfig(), "--secure-port=0", "--leader-elect=false")
	return err
}

const pods = "/api/v1/namespaces/default/pods"

// CreatePod creates a pod in the namespace default.
func (c *Cluster) CreatePod(ctx context.Context, p *core.Pod) error {
	return c.Do(ctx, "POST", pods, p, nil)
}

// WaitPod watches a pod until a condition holds. If the condition or the context fails, the error has the pod's status.
func (c *Cluster) WaitPod(ctx context.Context, name string, condition func(*core.Pod) (bool, error)) (*core.Pod, error) {
	resp, err := c.Send(ctx, "GET", pods+"?watch=1&fieldSelector=metadata.name="+name, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	var last core.PodStatus
	for {
		var e struct {
			Type   string
			Object core.Pod
		}
		if err := events.Decode(&e); err != nil {
			status, _ := json.Marshal(last)
			return nil, fmt.Errorf("pod %s: %w; its status is %s", name, errors.Join(context.Cause(ctx), err), status)
		}
		last = e.Object.Status
		ok, err := condition(&e.Object)
		if err != nil {
			status, _ := json.Marshal(last)
			return nil, fmt.Errorf("pod %s: %w; its status is %s", name, err, status)
		}
		if ok {
			return &e.Object, nil
		}
	}
}

// DeletePod deletes a pod. With a grace period of 0, the API server would remove it while it runs.
func (c *Cluster) DeletePod(ctx context.Context, name string) error {
	second := int64(1)
	return c.Do(ctx, "DELETE", pods+"/"+name, &meta.DeleteOptions{GracePeriodSeconds: &second}, nil)
}

// forget deletes a node whose kubelet has stopped, and its pods, from the API server.
func (c *Cluster) forget(node string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := &meta.DeleteOptions{GracePeriodSeconds: new(int64)}
	return errors.Join(
		c.Do(ctx, "DELETE", pods+"?fieldSelector=spec.nodeName="+node, now, nil),
		c.Do(ctx, "DELETE", "/api/v1/nodes/"+node, now, nil))
}

func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(path, b, 0o600)
}

// reservePorts returns ports of the loopback interface that no other process gets until the cluster is closed.
func (c *Cluster) reservePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		p, err := port.Reserve()
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.ports = append(c.ports, p)
		c.mu.Unlock()
		ports = append(ports, p.Port())
	}
	return ports, nil
}
