// Package node runs a real containerd under test. It has its own root, sockets, runc state and cgroups, so that it does
// not affect the machine's own containerd and leaves nothing behind.
//
// A [Node] can be killed, stopped, and started again on the same root, with other options or another binary. Pods use
// the host's network, so that no CNI plugin is needed.
package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Node is a containerd under test. Only one goroutine at a time may call the methods that start, stop and close it. All
// other methods may run concurrently while it runs.
type Node struct {
	opts     Options
	root     string
	ownsRoot bool
	process  *process // containerd; nil while stopped
	serve    *process // imagepin serve; nil while stopped, or if the node has none
	conn     *grpc.ClientConn
	upstream *grpc.ClientConn // to containerd if it has another socket; otherwise conn
	client   *containerd.Client
	runtime  cri.RuntimeServiceClient
	images   cri.ImageServiceClient
	names    atomic.Int64 // number of generated pod and container names
}

// Start creates and starts a node and waits until its CRI is ready. The context limits only the start.
func Start(ctx context.Context, opts Options) (*Node, error) {
	n, err := New(opts)
	if err != nil {
		return nil, err
	}
	if err := n.Start(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// New creates a node and its directories, and does not start it.
func New(opts Options) (*Node, error) {
	opts = opts.withDefaults()
	if err := Check(opts); err != nil {
		return nil, err
	}
	n := &Node{opts: opts, root: opts.Root}
	if n.root == "" {
		if err := Sweep(); err != nil {
			return nil, fmt.Errorf("cleaning up after an earlier process: %w", err)
		}
		dir, err := TempDir()
		if err != nil {
			return nil, err
		}
		n.root, n.ownsRoot = dir, true
	}
	if len(n.root) > maxRoot {
		return nil, fmt.Errorf("root %q is longer than %d bytes, so the path of a shim's socket would be too long", n.root, maxRoot)
	}
	// The cgroup of the node has the name of the root. Close kills all processes in it.
	if !strings.HasPrefix(filepath.Base(n.root), rootPrefix) {
		return nil, fmt.Errorf("root %q is not from TempDir, so another node could have the same cgroup", n.root)
	}
	for _, dir := range append([]string{"root", "state", "tmp", "s", "logs", "verifiers", "cni/bin", "cni/conf", "cdi", "opt"}, opts.HostsDirs...) {
		if err := os.MkdirAll(filepath.Join(n.root, dir), 0o711); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Options returns the options of the node.
func (n *Node) Options() Options { return n.opts }

// Root returns the directory of all files that the node writes.
func (n *Node) Root() string { return n.root }

// Path returns a path below [Node.Root].
func (n *Node) Path(elem ...string) string {
	return filepath.Join(append([]string{n.root}, elem...)...)
}

// Address returns the socket of the CRI and of imagepin's control service: that of imagepin serve, or of containerd.
func (n *Node) Address() string {
	if _, serve := n.opts.binaries(); serve != "" {
		return n.Path("imagepin.sock")
	}
	return n.ContainerdAddress()
}

// ContainerdAddress returns the socket of containerd.
func (n *Node) ContainerdAddress() string { return n.Path("containerd.sock") }

// DebugAddress returns the debug socket of the process of imagepin.
func (n *Node) DebugAddress() string {
	if n.Address() != n.ContainerdAddress() {
		return n.Path("imagepin-debug.sock")
	}
	return n.Path("debug.sock")
}

// Config returns the path of the config.toml.
func (n *Node) Config() string { return n.Path("config.toml") }

// ServeConfig returns the path of the configuration of imagepin serve.
func (n *Node) ServeConfig() string { return n.Path("imagepin.toml") }

// LogFile returns the path of the log of containerd and imagepin serve. Restarts append to it.
func (n *Node) LogFile() string { return n.Path("containerd.log") }

// Logs returns the log of containerd and imagepin serve.
func (n *Node) Logs() string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// NodeKey returns the path of the node's key for proofs.
func (n *Node) NodeKey() string {
	if n.Address() != n.ContainerdAddress() {
		return n.Path("imagepin", "node.key")
	}
	return n.Path("root", "io.containerd.imagepin.v1.images", "node.key")
}

// BootFile returns the path of the file with the ID of the last boot whose first start has collected what pulls had left.
func (n *Node) BootFile() string { return filepath.Join(filepath.Dir(n.NodeKey()), "boot-collected") }

// VerifierDir returns the bin_dir of image verifier plugins. It is empty at first.
func (n *Node) VerifierDir() string { return n.Path("verifiers") }

// PID returns the process ID of imagepin serve, or of containerd if the node has none. It is 0 while the process does
// not run.
func (n *Node) PID() int {
	if p := n.main(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// ContainerdPID returns the process ID of containerd, or 0 while it does not run.
func (n *Node) ContainerdPID() int {
	if n.process == nil {
		return 0
	}
	return n.process.cmd.Process.Pid
}

// main returns the process of imagepin: imagepin serve, or containerd if the node has none.
func (n *Node) main() *process {
	if _, serve := n.opts.binaries(); serve != "" {
		return n.serve
	}
	return n.process
}

// Runtime returns a client of the CRI RuntimeService.
func (n *Node) Runtime() cri.RuntimeServiceClient { return n.runtime }

// Images returns a client of the CRI ImageService.
func (n *Node) Images() cri.ImageServiceClient { return n.images }

// Conn returns the connection to [Node.Address], for other services. The node closes it when it stops.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Client returns a client of containerd whose default namespace is that of the CRI.
func (n *Node) Client() *containerd.Client { return n.client }

// WriteHosts writes the hosts.toml of a registry host ("127.0.0.1:5000", "docker.io" or "_default") to the first hosts
// directory.
func (n *Node) WriteHosts(host, toml string) error {
	return n.WriteHostsIn(n.opts.HostsDirs[0], host, toml)
}

// WriteHostsIn is [Node.WriteHosts] for another hosts directory.
func (n *Node) WriteHostsIn(dir, host, toml string) error {
	d := n.Path(dir, host)
	if err := os.MkdirAll(d, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d, "hosts.toml"), []byte(toml), 0o644)
}

// Mirror returns a hosts.toml with a server and its mirrors (URLs), in their order.
func Mirror(server string, mirrors ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server = %q\n", server)
	for _, m := range mirrors {
		fmt.Fprintf(&b, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", m)
	}
	return b.String()
}
