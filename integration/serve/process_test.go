package serve

import (
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestStop checks that imagepin serve waits for a running pull when it stops, ends a stream that would not end, and
// exits without an error. The next process serves the same images and containers.
func TestStop(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{})
	ref := r.push("app:v1", "v1")
	id := r.pull(ref, "")
	pod, err := r.RunPod(r.Ctx, node.PodOptions{})
	r.must(err)
	c, _, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: id})
	r.must(err)

	events, err := r.Runtime().GetContainerEvents(r.Ctx, &cri.GetEventsRequest{})
	r.must(err)
	begun, release := r.hang(registry.Is("GET", registry.Blob))
	slow := r.push("slow:v1", "v2")
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Pull(r.Ctx, slow, "")
		pulled <- err
	}()
	begun()
	since := r.LogOffset()
	r.must(r.SignalServe(syscall.SIGTERM))
	r.awaitLog(since, "imagepin is stopping")
	for err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "imagepin is stopping") {
		t.Errorf("stream: got %v, want Unavailable: imagepin is stopping", err)
	}
	release()
	if err := <-pulled; err != nil {
		t.Errorf("the running pull failed: %v", err)
	}
	if err := r.Wait(r.Ctx); err != nil {
		t.Errorf("imagepin serve exited with %v", err)
	}
	if _, err := os.Stat(r.Address()); !os.IsNotExist(err) {
		t.Errorf("socket after the stop: got %v, want no such file", err)
	}

	r.must(r.StartServe())
	r.must(r.WaitReady(r.Ctx))
	r.Reg.Reset()
	for ref, want := range map[string]string{ref: id, slow: ""} {
		img, err := r.ImageStatus(r.Ctx, ref, "")
		r.must(err)
		if img == nil || want != "" && img.Id != want {
			t.Errorf("ImageStatus %s: got %v", ref, img)
		}
	}
	run, err := r.Runtime().ExecSync(r.Ctx, &cri.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/app", "cat", "/facts"}})
	if err != nil || run.ExitCode != 0 {
		t.Errorf("exec in a container from before the restart: %v, %v", run, err)
	}
	if n := len(r.Reg.Requests()); n > 0 {
		t.Errorf("got %d requests to the registry, want none:\n%s", n, r.Reg.Dump())
	}
}

// TestOneServePerContainerd checks that a second imagepin serve exits, with the same state and with its own, and that
// one beside a containerd with imagepin built in exits too.
func TestOneServePerContainerd(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	if out, err := r.imagepin("serve", "--config", r.ServeConfig()); err == nil || !strings.Contains(out, "another imagepin serve uses it") {
		t.Errorf("second serve: got %v\n%s", err, out)
	}
	elsewhere := func(state, socket string) string {
		return "state = " + quoted(r.Path(state)) + "\naddress = " + quoted(r.Path(socket)) + "\ncontainerd_address = " + quoted(r.ContainerdAddress()) + "\n"
	}
	out, err := r.imagepin("serve", "--config", r.write("other.toml", elsewhere("other", "other.sock")))
	if err == nil || !strings.Contains(out, r.Path("root")+": another imagepin serve uses it") {
		t.Errorf("second serve with its own state: got %v\n%s", err, out)
	}
	if out, err := r.imagepin("serve", "--config", r.write("socket.toml", elsewhere("third", "imagepin.sock"))); err == nil || !strings.Contains(out, "another process is listening on it") {
		t.Errorf("serve on the same socket: got %v\n%s", err, out)
	}
	r.pull(r.push("app:v1", "v1"), "") // the first serve still works

	plugin := testkit.Node(t, node.Options{NoPods: true, Mode: node.Plugin})
	file := plugin.Path("serve.toml")
	text := "state = " + quoted(plugin.Path("imagepin")) + "\naddress = " + quoted(plugin.Path("imagepin.sock")) + "\ncontainerd_address = " + quoted(plugin.Address()) + "\n"
	r.must(os.WriteFile(file, []byte(text), 0o600))
	if out, err := r.imagepin("serve", "--config", file); err == nil || !strings.Contains(out, "it has imagepin built in (io.containerd.imagepin.v1.images)") {
		t.Errorf("serve beside a containerd with imagepin: got %v\n%s", err, out)
	}
}

// TestPermissions checks that only root can access the sockets and files of imagepin serve, and that it does not listen
// on TCP.
func TestPermissions(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, ServeExtra: "address = \"{root}/run/imagepin.sock\"\n"})
	r.must(r.StartContainerd())
	r.must(r.StartServe())
	socket := r.Path("run", "imagepin.sock")
	r.eventually("node.key exists", func() bool {
		_, err := os.Stat(r.Path("imagepin", "node.key"))
		return err == nil
	})
	for path, want := range map[string]fs.FileMode{
		socket:                         fs.ModeSocket | 0o600,
		filepath.Dir(socket):           fs.ModeDir | 0o711,
		r.DebugAddress():               fs.ModeSocket | 0o600,
		r.Path("imagepin"):             fs.ModeDir | 0o700,
		r.Path("imagepin", "node.key"): 0o600,
	} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if fi.Mode() != want {
			t.Errorf("%s: got mode %s, want %s", path, fi.Mode(), want)
		}
	}
	if got := listening(t, r.PID()); len(got) > 0 {
		t.Errorf("got TCP listeners %q, want none", got)
	}
}

// listening returns the addresses of the TCP sockets that a process listens on, in the format of /proc/net/tcp.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	fds, err := filepath.Glob(filepath.Join("/proc", itoa(pid), "fd", "*"))
	if err != nil || len(fds) == 0 {
		t.Fatalf("open files of process %d: %q, %v", pid, fds, err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			const listen = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listen && own[f[9]] {
				found = append(found, f[1])
			}
		}
	}
	return found
}

// TestHealth checks the HTTP endpoints: /healthz, /readyz and metrics over TCP, and profiles on a unix socket only.
func TestHealth(t *testing.T) {
	t.Parallel()
	address := testkit.Address(t)
	r := newRig(t, node.Options{NoPods: true, ServeExtra: "[metrics]\naddress = " + quoted(address) + "\n"})
	r.must(r.StartServe())
	get := func(client *http.Client, url string) (int, string) {
		req, err := http.NewRequestWithContext(r.Ctx, http.MethodGet, url, nil)
		r.must(err)
		req.Close = true
		res, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		r.must(err)
		return res.StatusCode, string(b)
	}
	tcp := &http.Client{Transport: &http.Transport{}}
	r.eventually("/readyz reports that serve waits for containerd", func() bool {
		code, text := get(tcp, "http://"+address+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, r.ContainerdAddress())
	})
	if code, text := get(tcp, "http://"+address+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, text)
	}
	r.must(r.StartContainerd())
	r.must(r.WaitReady(r.Ctx))
	r.eventually("/readyz is OK", func() bool {
		code, _ := get(tcp, "http://"+address+"/readyz")
		return code == http.StatusOK
	})
	r.pull(r.push("app:v1", "v1"), "")
	if _, text := get(tcp, "http://"+address+"/v1/metrics"); !strings.Contains(text, "imagepin_keys{") || !strings.Contains(text, "process_open_fds") {
		t.Errorf("metrics:\n%s", text)
	}
	if code, _ := get(tcp, "http://"+address+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles are served over TCP: %d", code)
	}
	unix := &http.Client{Transport: &http.Transport{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", r.DebugAddress()) }}}
	if code, text := get(unix, "http://debug/debug/pprof/goroutine?debug=1"); code != http.StatusOK || !strings.Contains(text, "goroutine profile") {
		t.Errorf("profiles: %d %s", code, text)
	}
	r.must(r.EndContainerd(syscall.SIGKILL))
	r.eventually("/readyz fails without containerd", func() bool {
		code, _ := get(tcp, "http://"+address+"/readyz")
		return code == http.StatusServiceUnavailable
	})
}
