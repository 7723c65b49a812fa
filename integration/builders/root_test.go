package builders

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// inRoot runs a command in the root of hack/builders.sh, which it does not change. /var/shared is a directory of the test. It runs in
// a mount namespace of its own.
const inRoot = `set -e
root=$1 work=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
for dir in dev proc sys; do mount --rbind "/$dir" "$root/$dir"; done
for dir in run tmp var; do mount -t tmpfs none "$root/$dir"; done
mkdir "$root/var/tmp" "$root/var/shared"
mount --bind "$work" "$root/var/shared"
cd "$root"
exec chroot . "$@"`

// workshop is a directory in which builders run, and the registries to which they push.
type workshop struct {
	t    *testing.T
	dir  string // /var/shared of the builders
	host string // of docker-registry
	ggcr *registry.Registry
}

// newWorkshop starts docker-registry.
func newWorkshop(t *testing.T, ggcr *registry.Registry) *workshop {
	t.Helper()
	w := &workshop{t: t, dir: t.TempDir(), host: testkit.Address(t), ggcr: ggcr}
	w.write("registry.yml", "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: /var/shared/registry}}\nhttp: {addr: "+w.host+"}\n")
	cmd := w.command("docker-registry", "serve", "/var/shared/registry.yml")
	log := filepath.Join(w.dir, "registry.log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The process gets the death signal if the thread that started it exits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
		_ = out.Close()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		<-done
		if text, err := os.ReadFile(log); t.Failed() {
			t.Logf("docker-registry: %v\n%s", err, text)
		}
	})
	testkit.Eventually(t, "docker-registry answers", func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.host+"/v2/", nil)
		if err != nil {
			return false, err
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return false, nil // it does not listen yet
		}
		return res.StatusCode == http.StatusOK, res.Body.Close()
	})
	return w
}

// in returns the workshop for a subtest.
func (w *workshop) in(t *testing.T) *workshop {
	sub := *w
	sub.t = t
	return &sub
}

// ref returns the reference of a form in its registry.
func (w *workshop) ref(f form) string {
	if f.ggcr {
		return w.ggcr.Ref(f.name + ":v1")
	}
	return w.host + "/" + f.name + ":v1"
}

func (w *workshop) command(args ...string) *exec.Cmd {
	w.t.Helper()
	root, err := filepath.EvalSymlinks(filepath.Join(node.BinDir(), "builders"))
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(testkit.Context(w.t), "sh", append([]string{"-c", inRoot, "sh", root, w.dir}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "PODMAN_IGNORE_CGROUPSV1_WARNING=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a program. buildah and podman use the same images.
func (w *workshop) run(program string, args ...string) {
	w.t.Helper()
	if program != "skopeo" {
		args = append([]string{"--root", "/var/shared/storage", "--runroot", "/var/shared/run", "--storage-driver", "vfs"}, args...)
	}
	w.output(w.command(append([]string{program}, args...)...))
}

// oras runs oras, which has no libraries, in the same directory. It returns what oras prints.
func (w *workshop) oras(args ...string) string {
	w.t.Helper()
	cmd := exec.CommandContext(testkit.Context(w.t), filepath.Join(node.BinDir(), "oras"), args...)
	cmd.Dir, cmd.Env = w.dir, []string{"HOME=" + w.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return w.output(cmd)
}

func (w *workshop) output(cmd *exec.Cmd) string {
	w.t.Helper()
	runtime.LockOSThread() // see newWorkshop
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
	}
	return string(out)
}

func (w *workshop) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// context writes the directory from which an App image is built.
func (w *workshop) context(dir string, opts images.Options) {
	w.t.Helper()
	programs := images.Programs{}
	program, err := programs.App(testkit.Context(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	_, rootfs, _ := strings.Cut(opts.Line(0), " rootfs=")
	rootfs, _, _ = strings.Cut(rootfs, " uid=")
	w.write(dir+"/app", string(program))
	w.write(dir+"/facts", rootfs+"\n")
	w.write(dir+"/Containerfile", "FROM scratch\nCOPY app /app\nCOPY facts /facts\nENV "+images.FactsEnv+"=\""+opts.Facts()+"\"\nENTRYPOINT [\"/app\"]\n")
}
