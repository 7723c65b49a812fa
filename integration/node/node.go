// Package node runs a containerd under test: a real one, with its own root, sockets, runc state and cgroups, so that nothing
// of the machine's own containerd is touched and nothing stays behind.
//
// A [Node] outlives the process that it runs: it can be killed, stopped, and started again on the same root, with other
// options or another binary. Pods use the host's network, so that no CNI plugin is needed.
package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names of binaries in [BinDir].
const (
	// Ours is containerd with imagepin.
	Ours = "containerd"
	// Stock is containerd of the same version without it.
	Stock = "containerd-stock"
)

// Mode is where imagepin runs.
type Mode string

// The modes.
const (
	// Plugin is within containerd.
	Plugin Mode = "plugin"
	// Serve is beside a stock containerd, as `imagepin serve`.
	Serve Mode = "serve"
)

// DefaultMode is the mode that the environment variable IMAGEPIN_MODE says, or else [Plugin].
func DefaultMode() Mode {
	if m := os.Getenv("IMAGEPIN_MODE"); m != "" {
		return Mode(m)
	}
	return Plugin
}

// Namespace is the containerd namespace of CRI.
const Namespace = "k8s.io"

// DefaultHandler is the runtime handler of pods that name none.
const DefaultHandler = "runc"

// maxRoot is the longest root: the socket of a shim below it must fit into a socket address (see containerd's socket_dir).
const maxRoot = 40

// Handler is a runtime handler: runc under another name, with the snapshotter and the platform given.
type Handler struct {
	Name        string
	Snapshotter string // empty: the default one
	Platform    string // empty: none configured, which means the node's
	// Extra is TOML for the handler's table, such as `disable_pause_image_pull = true`.
	Extra string
}

// Options say what containerd to run and how. The zero value is ours with one handler, runc on overlayfs.
type Options struct {
	// Mode is where imagepin runs; empty means [DefaultMode].
	Mode Mode
	// Binary is a name in BinDir or a path; empty means [Ours]. In mode [Serve], ours is stock with "imagepin serve"
	// beside it, and a variant of ours ("containerd-race") stock with that variant of imagepin ("imagepin-race").
	Binary string
	// BinDir is where the binaries are; empty means [BinDir]().
	BinDir string
	// Root is the directory for everything the node writes, at most 40 bytes long. Empty means a new temporary one, which
	// Close removes; a given one stays.
	Root string
	// Handlers beside runc. One with the name runc changes that.
	Handlers []Handler
	// Snapshotter is the default one; empty means overlayfs.
	Snapshotter string
	// DiscardUnpackedLayers as in CRI's image configuration.
	DiscardUnpackedLayers bool
	// SandboxImage is the reference of the pause image.
	SandboxImage string
	// HostsDirs are the roots of hosts.toml, below Root, in the order of config_path. Empty means one, "certs.d".
	HostsDirs []string
	// StatsCollectPeriod is in seconds; 0 leaves containerd's own default.
	StatsCollectPeriod int
	// DisabledPlugins by their full names.
	DisabledPlugins []string
	// Extra is TOML (configuration version 3) that is merged over what the options give; "{root}" in it is the node's root.
	Extra string
	// ServeExtra is TOML that is merged over the configuration of imagepin serve; "{root}" in it is the node's root.
	ServeExtra string
	// Env is added to containerd's environment, and to that of imagepin serve.
	Env []string
	// LogLevel of containerd; empty means debug.
	LogLevel string
	// NoPods says that no pod will run, so that runc may be missing.
	NoPods bool
	// StartTimeout is how long CRI may take until it answers; 0 means a minute.
	StartTimeout time.Duration
}

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

// BinDir is where the binaries under test are: the environment variable IMAGEPIN_BIN, or bin in this repository.
func BinDir() string {
	if dir := os.Getenv("IMAGEPIN_BIN"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "test-binaries.sh")); err == nil {
			return filepath.Join(dir, "bin")
		}
		dir = filepath.Dir(dir)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "..", "..", "bin")
	}
	return "bin"
}

// Check says what of the parts that a node needs is missing here, and how to get it; nil means that all is there.
func Check(opts Options) error {
	opts = opts.withDefaults()
	var missing []string
	containerd, beside := opts.binaries()
	for _, name := range []string{containerd, beside, "containerd-shim-runc-v2", "runc", "ctr"} {
		if name == "" || name == "runc" && opts.NoPods {
			continue
		}
		if _, err := os.Stat(opts.binary(name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not in %s: %s; run `make build` and hack/test-binaries.sh", opts.BinDir, strings.Join(missing, ", "))
	}
	if os.Geteuid() != 0 {
		return errors.New("containerd with runc pods needs root")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Mode == "" {
		o.Mode = DefaultMode()
	}
	if o.Binary == "" {
		o.Binary = Ours
	}
	if o.BinDir == "" {
		o.BinDir = BinDir()
	}
	if o.Snapshotter == "" {
		o.Snapshotter = "overlayfs"
	}
	if len(o.HostsDirs) == 0 {
		o.HostsDirs = []string{"certs.d"}
	}
	if o.LogLevel == "" {
		o.LogLevel = "debug"
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = time.Minute
	}
	return o
}

// binaries are those of containerd and of imagepin serve beside it, which is empty where there is none.
func (o Options) binaries() (containerd, beside string) {
	variant, ours := strings.CutPrefix(o.Binary, Ours)
	if o.Mode != Serve || o.Binary == Stock || !ours {
		return o.Binary, ""
	}
	return Stock, "imagepin" + variant
}

func (o Options) binary(name string) string {
	if strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	return filepath.Join(o.BinDir, name)
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

// Start runs containerd on the node's root and waits until CRI is ready. It is an error if it runs already.
func (n *Node) Start(ctx context.Context) error {
	if err := n.Launch(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// Launch starts what the node runs and the clients and does not wait until it is ready. After [Node.Crash] a containerd beside
// which imagepin was killed still runs, and stays.
func (n *Node) Launch(ctx context.Context) error {
	if n.main() != nil {
		return errors.New("containerd runs already")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if n.process != nil {
		return n.StartServe()
	}
	if err := n.Prepare(nil); err != nil {
		return err
	}
	if err := n.StartContainerd(); err != nil {
		return err
	}
	if err := n.StartServe(); err != nil {
		return errors.Join(err, n.Kill9())
	}
	return nil
}

// Prepare changes the options, unless change is nil, writes the configurations and makes the clients. It starts nothing, and what
// runs reads nothing of it by itself.
func (n *Node) Prepare(change func(*Options)) error {
	if change != nil {
		change(&n.opts)
		n.opts = n.opts.withDefaults()
	}
	config, beside, err := n.opts.configs(n.root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.Config(), config, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(n.ServeConfig(), beside, 0o644); err != nil {
		return err
	}
	if n.conn != nil {
		return nil
	}
	return n.connect()
}

// StartContainerd starts containerd alone, as it was last prepared, and does not wait.
func (n *Node) StartContainerd() (err error) {
	binary, _ := n.opts.binaries()
	n.process, err = launch(n, n.ContainerdAddress(), binary, "--config", n.Config())
	return err
}

// StartServe starts imagepin serve alone, as it was last prepared, and does not wait. Where the node has none it does nothing.
func (n *Node) StartServe() (err error) {
	if _, binary := n.opts.binaries(); binary != "" {
		n.beside, err = launch(n, n.Address(), binary, "serve", "--config", n.ServeConfig())
	}
	return err
}

func (n *Node) connect() (err error) {
	if n.conn, err = dial(n.Address()); err != nil {
		return err
	}
	n.behind = n.conn
	if n.Address() != n.ContainerdAddress() {
		if n.behind, err = dial(n.ContainerdAddress()); err != nil {
			return err
		}
	}
	n.client, err = containerd.NewWithConn(n.behind, containerd.WithDefaultNamespace(Namespace))
	n.runtime, n.images = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	return err
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
}

// WaitReady waits until the CRI service is ready; it fails early if containerd exits. The error ends with containerd's last words.
func (n *Node) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.opts.StartTimeout, fmt.Errorf("containerd was not ready in %s", n.opts.StartTimeout))
	defer cancel()
	p := n.main()
	if p == nil || n.process == nil {
		return errors.New("containerd does not run")
	}
	var last error
	for {
		if last = n.ready(ctx); last == nil {
			return nil
		}
		// Nothing announces readiness (no systemd here), so it is asked for.
		t := time.NewTimer(5 * time.Millisecond)
		select {
		case <-t.C:
		case <-p.done:
			t.Stop()
			return n.exited(p)
		case <-n.process.done:
			t.Stop()
			return n.exited(n.process)
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w\n%s", context.Cause(ctx), last, n.logTail())
		}
	}
}

// exited ends what is left of a node of which a process has exited.
func (n *Node) exited(p *process) error {
	err := fmt.Errorf("%s exited while starting: %v\n%s", filepath.Base(p.cmd.Path), p.err, n.logTail())
	return errors.Join(err, n.Kill9())
}

func (n *Node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := (&dialer).DialContext(ctx, "unix", n.Address())
	if err != nil {
		return err
	}
	_ = c.Close()
	// Before the socket is there, gRPC would back off for a second and more.
	n.conn.ResetConnectBackoff()
	n.behind.ResetConnectBackoff()
	if _, err := n.runtime.Version(ctx, &cri.VersionRequest{}); err != nil {
		return err
	}
	if _, err := n.images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{}); err != nil {
		return err
	}
	res, err := n.runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range res.GetStatus().GetConditions() {
		if c.Type == cri.RuntimeReady && c.Status {
			return nil
		}
	}
	return fmt.Errorf("runtime is not ready: %v", res.GetStatus())
}

func (n *Node) logTail() string {
	lines := strings.Split(strings.TrimSpace(n.Logs()), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// Kill9 kills containerd, and imagepin serve before it, at once with SIGKILL, and waits until they are gone. Shims and
// containers go on.
func (n *Node) Kill9() error { return n.end(syscall.SIGKILL) }

// Crash kills the process that imagepin is in, at once with SIGKILL, and waits until it is gone. [Node.Start] starts it again.
func (n *Node) Crash() error {
	if n.main() != n.process {
		return n.EndServe(syscall.SIGKILL)
	}
	return n.Kill9()
}

// Stop ends containerd, and imagepin serve before it, with SIGTERM, and waits until they are gone. Shims and containers go on.
func (n *Node) Stop() error { return n.end(syscall.SIGTERM) }

func (n *Node) end(sig syscall.Signal) error {
	err := errors.Join(n.EndServe(sig), n.EndContainerd(sig))
	n.closed()
	return err
}

// EndServe ends imagepin serve alone and waits until it is gone. The clients stay.
func (n *Node) EndServe(sig syscall.Signal) error {
	p := n.beside
	n.beside = nil
	return p.end(sig)
}

// EndContainerd ends containerd alone and waits until it is gone. The clients stay.
func (n *Node) EndContainerd(sig syscall.Signal) error {
	p := n.process
	n.process = nil
	return p.end(sig)
}

// SignalServe sends a signal to imagepin serve.
func (n *Node) SignalServe(sig syscall.Signal) error { return n.beside.cmd.Process.Signal(sig) }

// end ends a process, if there is one.
func (p *process) end(sig syscall.Signal) error {
	if p == nil {
		return nil
	}
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		err = errors.Join(err, fmt.Errorf("%s did not end within 30s of %s", filepath.Base(p.cmd.Path), sig))
	}
	return err
}

// closed forgets the processes and their clients.
func (n *Node) closed() {
	for _, conn := range []*grpc.ClientConn{n.conn, n.behind} {
		if conn != nil {
			_ = conn.Close()
		}
	}
	n.process, n.beside = nil, nil
	n.conn, n.behind, n.client, n.runtime, n.images = nil, nil, nil, nil, nil
}

// Wait waits until the process that imagepin is in exits by itself and returns how.
func (n *Node) Wait(ctx context.Context) error {
	p := n.main()
	if p == nil {
		return errors.New("containerd does not run")
	}
	select {
	case <-p.done:
		return errors.Join(p.err, n.Crash())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Restart stops containerd if it runs (SIGTERM; call [Node.Kill9] before for a crash), changes the options, and starts it
// again on the same root. Change may be nil.
func (n *Node) Restart(ctx context.Context, change func(*Options)) error {
	if err := n.Stop(); err != nil {
		return err
	}
	if change != nil {
		change(&n.opts)
		n.opts = n.opts.withDefaults()
		if err := Check(n.opts); err != nil {
			return err
		}
	}
	return n.Start(ctx)
}

// Ctr runs ctr on this node, in CRI's namespace unless the arguments name another, and returns its output.
func (n *Node) Ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.opts.binary("ctr"), append([]string{"--address", n.ContainerdAddress(), "--namespace", Namespace}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// process is one that runs.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// launch runs a binary that serves a socket.
func launch(n *Node, socket, binary string, args ...string) (*process, error) {
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The socket of a killed process would look like a server that refuses.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	cmd := exec.Command(n.opts.binary(binary), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = n.root
	cmd.Env = append(os.Environ(), "PATH="+n.opts.BinDir+":"+os.Getenv("PATH"), "TMPDIR="+n.Path("tmp"))
	cmd.Env = append(cmd.Env, n.opts.Env...)
	// A group of its own keeps Ctrl-C for the caller, who cleans up; and it must not outlive a caller that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that started the process, so that thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// LogOffset and LogsSince let a test look at what containerd logs from some moment on.
func (n *Node) LogOffset() int64 {
	fi, err := os.Stat(n.LogFile())
	if err != nil {
		return 0
	}
	return fi.Size()
}

// LogsSince is the log from an offset on.
func (n *Node) LogsSince(offset int64) string {
	f, err := os.Open(n.LogFile())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<40))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var capSysResource = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err != nil || caps&(1<<24) != 0
		}
	}
	return true
})

// RestrictsOOMScore says that this machine grants no CAP_SYS_RESOURCE, so that nodes run with restrict_oom_score_adj.
func RestrictsOOMScore() bool { return !capSysResource() }
