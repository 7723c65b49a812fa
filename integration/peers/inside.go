package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// root is the directory of all files in the namespaces of a suite.
const root = "/run/imagepin-peers"

// insideVariable has the job of a process that runs in the namespaces.
const insideVariable = "IMAGEPIN_PEERS_JOB"

// containerdAddress is the socket of containerd.
const containerdAddress = "/run/c/containerd.sock"

// temporary is the directory for temporary files of a suite. It is short, because paths of sockets are below it.
const temporary = "/run/t"

// restartDelay is how long containerd stays away after it has ended. The tests that end it look for its process every second.
const restartDelay = 2500 * time.Millisecond

// job is one suite with one containerd.
type job struct {
	Suite string
	With  with
	// Run and Skip are patterns of tests. Empty means all, and none.
	Run, Skip string
	// Bin is the directory of the binaries.
	Bin string
}

// peer returns the path of a binary of peers.
func (j job) peer(name string) string { return filepath.Join(j.Bin, "peers", name) }

// inside runs the job in its namespaces, and returns the exit code of the suite.
func inside() int {
	var j job
	err := json.Unmarshal([]byte(os.Getenv(insideVariable)), &j)
	if err == nil {
		// Tests count the open files of a shim, which would inherit what the caller of this process has left open.
		err = os.NewSyscallError("close_range", unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC))
	}
	if err == nil {
		err = j.run(context.Background())
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode() // tests of the suite have failed
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		return failed
	}
	return 0
}

// failed is the exit code if the suite did not run to its end.
const failed = 125

func (j job) run(ctx context.Context) error {
	if err := loopbackUp(); err != nil {
		return err
	}
	reg, err := registry.New()
	if err != nil {
		return err
	}
	if err := push(ctx, reg, j.peer("busybox")); err != nil {
		return err
	}
	ca := filepath.Join(root, "ca.pem")
	if err := serveHosts(reg, ca); err != nil {
		return err
	}
	bin, err := j.binaries()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"SSL_CERT_FILE": ca, "PATH": bin + ":" + filepath.Join(j.Bin, "erofs") + ":" + os.Getenv("PATH"), "TMPDIR": temporary} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	for _, s := range suites {
		if s.name == j.Suite {
			return s.run(ctx, j, bin)
		}
	}
	return fmt.Errorf("there is no suite %q", j.Suite)
}

// binaries creates a directory with the binaries under the names that the suites use.
func (j job) binaries() (string, error) {
	bin := filepath.Join(root, "bin")
	links := map[string]string{
		"ctr": "ctr", "runc": "runc", "imagepin": "imagepin", "containerd-shim-runc-v2": "containerd-shim-runc-v2", "containerd": node.Ours,
		"containerd-shim-runc-fp-v1": "peers/containerd-shim-runc-fp-v1", "runc-fp": "peers/runc-fp",
	}
	if j.With != withPlugin {
		links["containerd"] = node.Stock
	}
	links[node.Stock] = links["containerd"]
	links["pkill"] = "peers/pkill" // which not every machine has
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	for name, target := range links {
		if err := os.Symlink(filepath.Join(j.Bin, target), filepath.Join(bin, name)); err != nil {
			return "", err
		}
	}
	return bin, nil
}

// containerd starts containerd, and imagepin serve if the job has it, and returns the address of the CRI. A containerd that ends
// is started again.
func (j job) containerd(ctx context.Context, bin string, opts node.Options) (address string, _ error) {
	opts.Root, opts.BinDir, opts.Mode, opts.Binary = root, bin, node.Plugin, node.Ours
	if j.With == withServe {
		opts.Mode = node.Serve
	}
	opts.Extra += fmt.Sprintf("[grpc]\naddress = %[1]q\n[ttrpc]\naddress = \"%[1]s.ttrpc\"\n", containerdAddress)
	opts.ServeExtra += fmt.Sprintf("containerd_address = %q\n", containerdAddress)
	n, err := node.New(opts)
	if err != nil {
		return "", err
	}
	if err := n.Prepare(nil); err != nil {
		return "", err
	}
	go keep(ctx, n, filepath.Join(bin, "containerd"), "--config", n.Config())
	if j.With != withServe {
		return containerdAddress, ready(ctx, containerdAddress)
	}
	go keep(ctx, n, filepath.Join(bin, "imagepin"), "serve", "--config", n.ServeConfig())
	return n.Address(), ready(ctx, n.Address())
}

// keep runs a program, and starts it again after it has ended.
func keep(ctx context.Context, n *node.Node, program string, args ...string) {
	for ctx.Err() == nil {
		d, err := daemon.Start(exec.Command(program, args...), n.LogFile())
		if err == nil {
			err = d.Wait(ctx)
		}
		fmt.Fprintf(os.Stderr, "peers: %s has ended: %v\n", filepath.Base(program), err)
		select {
		case <-time.After(restartDelay):
		case <-ctx.Done():
		}
	}
}

// ready waits until the CRI of a socket is ready.
func ready(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		conn.ResetConnectBackoff()
		_, err := cri.NewImageServiceClient(conn).ImageFsInfo(ctx, &cri.ImageFsInfoRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the CRI of %s is not ready: %w", socket, err)
		}
	}
}
