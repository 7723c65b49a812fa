// Package node runs a containerd under test: a real one, with its own root, sockets, runc state and cgroups, so that nothing
// of the machine's own containerd is touched and nothing stays behind.
//
// A [Node] outlives the process that it runs: it can be killed, stopped, and started again on the same root, with other
// options or another binary. Pods use the host's network, so that no CNI plugin is needed.
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

// Node is a containerd under test. Methods that start, stop and close it are for one goroutine at a time; all others may run
// concurrently while it runs.
type Node struct {
	opts     Options
	root     string
	ownsRoot bool
	process  *process // containerd; nil while stopped
	beside   *process // imagepin serve; nil while stopped, and where there is none
	conn     *grpc.ClientConn
	behind   *grpc.ClientConn // to containerd where that is another socket; else conn
	client   *containerd.Client
	runtime  cri.RuntimeServiceClient
	images   cri.ImageServiceClient
	names    atomic.Int64 // counts the names given to pods and containers
}

// Start runs a containerd and waits until its CRI service is ready. The context bounds the start only.
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

// New makes a node with its directories, without starting it.
func New(opts Options) (*Node, error) {
	opts = opts.withDefaults()
	if err := Check(opts); err != nil {
		return nil, err
	}
	n := &Node{opts: opts, root: opts.Root}
	if n.root == "" {
		if err := Sweep(); err != nil {
			return nil, fmt.Errorf("removing what an earlier process left: %w", err)
		}
		dir, err := TempDir()
		if err != nil {
			return nil, err
		}
		n.root, n.ownsRoot = dir, true
	}
	if len(n.root) > maxRoot {
		return nil, fmt.Errorf("root %q is longer than %d bytes, which a shim's socket address cannot hold", n.root, maxRoot)
	}
	for _, dir := range append([]string{"root", "state", "tmp", "s", "logs", "verifiers", "cni/bin", "cni/conf", "cdi", "opt"}, opts.HostsDirs...) {
		if err := os.MkdirAll(filepath.Join(n.root, dir), 0o711); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Options returns what the node was last started with.
func (n *Node) Options() Options { return n.opts }

// Root is the directory of everything the node writes.
func (n *Node) Root() string { return n.root }

// Path is a path below [Node.Root].
func (n *Node) Path(elem ...string) string {
	return filepath.Join(append([]string{n.root}, elem...)...)
}

// Address is the socket that serves CRI and imagepin's control service: containerd's, or that of imagepin serve.
func (n *Node) Address() string {
	if _, beside := n.opts.binaries(); beside != "" {
		return n.Path("imagepin.sock")
	}
	return n.ContainerdAddress()
}

// ContainerdAddress is the socket of containerd.
func (n *Node) ContainerdAddress() string { return n.Path("containerd.sock") }

// DebugAddress is the socket with the profiles of the process that imagepin is in.
func (n *Node) DebugAddress() string {
	if n.Address() != n.ContainerdAddress() {
		return n.Path("imagepin-debug.sock")
	}
	return n.Path("debug.sock")
}

// Config is the path of the config.toml.
func (n *Node) Config() string { return n.Path("config.toml") }

// ServeConfig is the path of the configuration of imagepin serve.
func (n *Node) ServeConfig() string { return n.Path("imagepin.toml") }

// LogFile is the path of the log of containerd, and of imagepin serve, which goes on over restarts.
func (n *Node) LogFile() string { return n.Path("containerd.log") }

// Logs returns containerd's log so far.
func (n *Node) Logs() string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// NodeKey is the file of the key that credentials are noted under.
func (n *Node) NodeKey() string {
	if n.Address() != n.ContainerdAddress() {
		return n.Path("imagepin", "node.key")
	}
	return n.Path("root", "io.containerd.imagepin.v1.images", "node.key")
}

// VerifierDir is the bin_dir of image verifier plugins, empty at first.
func (n *Node) VerifierDir() string { return n.Path("verifiers") }

// PID is the process ID of imagepin: of containerd, or of imagepin serve. It is 0 while that does not run.
func (n *Node) PID() int {
	if p := n.main(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// ContainerdPID is the process ID of containerd, 0 while it does not run.
func (n *Node) ContainerdPID() int {
	if n.process == nil {
		return 0
	}
	return n.process.cmd.Process.Pid
}

// main is the process that imagepin is in.
func (n *Node) main() *process {
	if _, beside := n.opts.binaries(); beside != "" {
		return n.beside
	}
	return n.process
}

// Runtime is a client of the CRI RuntimeService.
func (n *Node) Runtime() cri.RuntimeServiceClient { return n.runtime }

// Images is a client of the CRI ImageService.
func (n *Node) Images() cri.ImageServiceClient { return n.images }

// Conn is the connection to the socket, for other services. It belongs to the node and lasts until the process ends.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Client is a client of containerd whose default namespace is CRI's.
func (n *Node) Client() *containerd.Client { return n.client }

// WriteHosts writes the hosts.toml of a registry host ("127.0.0.1:5000", "docker.io" or "_default") into the first of the hosts directories.
func (n *Node) WriteHosts(host, toml string) error {
	return n.WriteHostsIn(n.opts.HostsDirs[0], host, toml)
}

// WriteHostsIn is [Node.WriteHosts] for another of the hosts directories.
func (n *Node) WriteHostsIn(dir, host, toml string) error {
	d := n.Path(dir, host)
	if err := os.MkdirAll(d, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d, "hosts.toml"), []byte(toml), 0o644)
}

// Mirror is the text of a hosts.toml: the mirrors (URLs) in their order, then the server itself.
func Mirror(server string, mirrors ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server = %q\n", server)
	for _, m := range mirrors {
		fmt.Fprintf(&b, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", m)
	}
	return b.String()
}
