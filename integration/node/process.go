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

// Ctr runs ctr on this node, with its environment and in CRI's namespace unless the arguments name another, and returns its output.
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
