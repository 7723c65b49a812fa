package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/imagepin/imagepin/integration/node"
)

const insideEnv = "IMAGEPIN_IN_NAMESPACE"

// devicePlugins is a fixed path of kubelet (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
const devicePlugins = "/var/lib/kubelet/device-plugins"

// InNamespace runs main in a new mount namespace and returns its exit code. Call it first in TestMain, with the rest of
// TestMain as main. In the namespace, kubelet does not change the machine's sysctls, /var/lib/kubelet and
// /var/log/containers. All mounts end with the namespace. main gets the signals of this process. InNamespace also cleans up
// after a main that died.
func InNamespace(main func() int) int {
	if os.Getenv(insideEnv) != "" {
		if err := hideHost(os.Getenv(insideEnv)); err != nil {
			fmt.Fprintln(os.Stderr, "hide the host from kubelet:", err)
			return 1
		}
		return main()
	}
	code, err := runInside()
	if err := errors.Join(err, node.Sweep()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func runInside() (int, error) {
	dir, err := node.TempDir()
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	// The namespace's mounts are private: they are not visible outside.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	// SIGQUIT is what go test sends after its timeout. main then prints its goroutines.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("running in a mount namespace: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // main may have ended
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, fmt.Errorf("running in a mount namespace: %w", err)
	}
	return cmd.ProcessState.ExitCode(), nil
}

// hideHost mounts over the files and directories that kubelet would write to. The sysctls have the values that kubelet
// requires.
func hideHost(dir string) error {
	for path, value := range map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"} {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, filepath.Join("/proc/sys", path), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	// A pod in a user namespace can mount proc only if there is one without mounts over its files (mount_too_revealing in Linux).
	whole := filepath.Join(dir, "proc")
	if err := os.Mkdir(whole, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("proc", whole, "proc", 0, ""); err != nil {
		return fmt.Errorf("%s: %w", whole, err)
	}
	for _, path := range []string{"/var/lib", "/var/log"} {
		d := filepath.Join(dir, path)
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(d, path, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	// kubelet creates its socket for device plugins at this path with any root directory, so two kubelets would remove
	// each other's socket. The link points to each kubelet's own directory.
	if err := os.Mkdir(filepath.Dir(devicePlugins), 0o755); err != nil {
		return err
	}
	return os.Symlink("/proc/self/cwd/"+filepath.Base(devicePlugins), devicePlugins)
}
