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
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Start starts the node on its root and waits until the CRI is ready. It fails if the node is running.
func (n *Node) Start(ctx context.Context) error {
	if err := n.Launch(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// Launch starts the node's processes and clients and does not wait until they are ready. If containerd still runs, as
// after a [Node.Crash] of imagepin serve, Launch starts only imagepin serve.
func (n *Node) Launch(ctx context.Context) error {
	if n.main() != nil {
		return errors.New("the node is already running")
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

// Prepare changes the options, unless change is nil, writes the configuration files and creates the clients. It does
// not start or reload processes.
func (n *Node) Prepare(change func(*Options)) error {
	if change != nil {
		change(&n.opts)
		n.opts = n.opts.withDefaults()
	}
	config, serve, err := n.opts.configs(n.root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.Config(), config, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(n.ServeConfig(), serve, 0o644); err != nil {
		return err
	}
	if n.conn != nil {
		return nil
	}
	return n.connect()
}

// StartContainerd starts only containerd, with the configuration of the last [Node.Prepare], and does not wait until it
// is ready.
func (n *Node) StartContainerd() (err error) {
	binary, _ := n.opts.binaries()
	n.process, err = launch(n, n.ContainerdAddress(), binary, "--config", n.Config())
	return err
}

// StartServe starts only imagepin serve, with the configuration of the last [Node.Prepare], and does not wait until it
// is ready. If the node has no imagepin serve, it does nothing.
func (n *Node) StartServe() (err error) {
	if _, binary := n.opts.binaries(); binary != "" {
		n.serve, err = launch(n, n.Address(), binary, "serve", "--config", n.ServeConfig())
	}
	return err
}

func (n *Node) connect() (err error) {
	if n.conn, err = dial(n.Address()); err != nil {
		return err
	}
	n.upstream = n.conn
	if n.Address() != n.ContainerdAddress() {
		if n.upstream, err = dial(n.ContainerdAddress()); err != nil {
			return err
		}
	}
	n.client, err = containerd.NewWithConn(n.upstream, containerd.WithDefaultNamespace(Namespace))
	n.runtime, n.images = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	return err
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
}

// WaitReady waits until the CRI is ready. It fails early if a process exits. The error has the end of the log.
func (n *Node) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.opts.StartTimeout, fmt.Errorf("containerd was not ready in %s", n.opts.StartTimeout))
	defer cancel()
	p := n.main()
	if p == nil || n.process == nil {
		return errors.New("the node is not running")
	}
	var last error
	for {
		if last = n.ready(ctx); last == nil {
			return nil
		}
		// Without systemd, the processes do not notify that they are ready.
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

// exited kills the processes of a node after one has exited, and returns an error.
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
	// If gRPC has failed to connect before, it would wait for a second or more.
	n.conn.ResetConnectBackoff()
	n.upstream.ResetConnectBackoff()
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

// Kill9 kills imagepin serve and then containerd with SIGKILL, and waits until they have exited. Shims and containers
// keep running.
func (n *Node) Kill9() error { return n.end(syscall.SIGKILL) }

// Crash kills the process of imagepin with SIGKILL and waits until it has exited. [Node.Start] starts it again.
func (n *Node) Crash() error {
	if n.main() != n.process {
		return n.EndServe(syscall.SIGKILL)
	}
	return n.Kill9()
}

// Stop stops imagepin serve and then containerd with SIGTERM, and waits until they have exited. Shims and containers
// keep running.
func (n *Node) Stop() error { return n.end(syscall.SIGTERM) }

func (n *Node) end(sig syscall.Signal) error {
	err := errors.Join(n.EndServe(sig), n.EndContainerd(sig))
	n.reset()
	return err
}

// EndServe sends a signal to imagepin serve and waits until it has exited. The clients stay open.
func (n *Node) EndServe(sig syscall.Signal) error {
	p := n.serve
	n.serve = nil
	return p.end(sig)
}

// EndContainerd sends a signal to containerd and waits until it has exited. The clients stay open.
func (n *Node) EndContainerd(sig syscall.Signal) error {
	p := n.process
	n.process = nil
	return p.end(sig)
}

// SignalServe sends a signal to imagepin serve.
func (n *Node) SignalServe(sig syscall.Signal) error { return n.serve.cmd.Process.Signal(sig) }

// end sends a signal to a process and waits until it has exited. If p is nil, it does nothing.
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
		err = errors.Join(err, fmt.Errorf("%s did not exit within 30s of %s", filepath.Base(p.cmd.Path), sig))
	}
	return err
}

// reset closes the clients and clears the fields of processes and clients.
func (n *Node) reset() {
	for _, conn := range []*grpc.ClientConn{n.conn, n.upstream} {
		if conn != nil {
			_ = conn.Close()
		}
	}
	n.process, n.serve = nil, nil
	n.conn, n.upstream, n.client, n.runtime, n.images = nil, nil, nil, nil, nil
}

// Wait waits until the process of imagepin exits by itself and returns its error.
func (n *Node) Wait(ctx context.Context) error {
	p := n.main()
	if p == nil {
		return errors.New("the node is not running")
	}
	select {
	case <-p.done:
		return errors.Join(p.err, n.Crash())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Restart stops the node with SIGTERM if it runs, changes the options, unless change is nil, and starts the node again
// on the same root. To restart after a crash, call [Node.Kill9] before.
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

// Ctr runs ctr with the environment of the node and returns its output. The namespace is that of the CRI, unless the
// arguments name another.
func (n *Node) Ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.opts.binary("ctr"), append([]string{"--address", n.ContainerdAddress(), "--namespace", Namespace}, args...)...)
	cmd.Env = append(os.Environ(), n.opts.Env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.String(), nil
}

// process is a running process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// launch starts a binary that serves a socket.
func launch(n *Node, socket, binary string, args ...string) (*process, error) {
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// Connections to the socket of a killed process would be refused.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	cmd := exec.Command(n.opts.binary(binary), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = n.root
	cmd.Env = append(os.Environ(), "PATH="+n.opts.BinDir+":"+os.Getenv("PATH"), "TMPDIR="+n.Path("tmp"))
	cmd.Env = append(cmd.Env, n.opts.Env...)
	// In its own process group, the process does not get Ctrl-C, so that the caller can clean up. It exits if the
	// caller is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The process gets the death signal if the thread that started it exits, so this thread waits for the process.
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

// LogOffset returns the end of the log, as an offset for [Node.LogsSince].
func (n *Node) LogOffset() int64 {
	fi, err := os.Stat(n.LogFile())
	if err != nil {
		return 0
	}
	return fi.Size()
}

// LogsSince returns the log from an offset.
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

// RestrictsOOMScore reports whether CAP_SYS_RESOURCE is missing, so that nodes run with restrict_oom_score_adj.
func RestrictsOOMScore() bool { return !capSysResource() }
