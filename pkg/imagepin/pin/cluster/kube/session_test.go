package kube

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

func TestNew(t *testing.T) {
	for _, config := range []Config{{}, {Kubeconfig: "kubeconfig"}, {Kubeconfig: "./x/kubeconfig"}, {Kubeconfig: "/x", Timeout: -1}} {
		_, err := New(config)
		want(t, err, imagepin.InvalidRequest, errdefs.ErrInvalidArgument, "")
	}
	// New reads nothing: a FIFO without a writer would block it.
	fifo := filepath.Join(t.TempDir(), "kubeconfig")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Kubeconfig: fifo})
	if err != nil || c.timeout != DefaultTimeout {
		t.Errorf("got timeout %v and %v", c.timeout, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestKubeconfigThatComesLater checks that the file is read at the first call, and again at the next call if it was not
// there or not complete.
func TestKubeconfigThatComesLater(t *testing.T) {
	a := startServer(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	c, _ := newClient(t, path)
	wantUnavailable(t, c.call(t.Context(), callFind), "open "+path+": no such file or directory")
	replace(t, path, "")
	wantUnavailable(t, c.call(t.Context(), callFind), "kubeconfig "+path+": ")
	replace(t, path, `{"kind":"Config"`)
	wantUnavailable(t, c.call(t.Context(), callFind), "kubeconfig "+path+": ")
	// As kubelet's, with a relative name of the certificate, which comes even later.
	a.kubeconfig(path, `{"client-certificate":"pki/current.pem","client-key":"pki/current.pem"}`)
	wantUnavailable(t, c.call(t.Context(), callFind), "pki/current.pem")
	if err := os.Mkdir(filepath.Join(dir, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := newAuthority(t).issue()
	replace(t, filepath.Join(dir, "pki/current.pem"), cert+key)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Error(err)
	}
	if got := a.got(); len(got) != 1 || got[0].peer != "2" {
		t.Errorf("got requests %v, want one with the certificate", got)
	}
}

// TestProblem checks that what is wrong is known before a call needs the API server, and without a request.
func TestProblem(t *testing.T) {
	a := startServer(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	c, _ := newClient(t, path)
	wantUnavailable(t, c.Problem(t.Context()), "open "+path+": no such file or directory\nkubelet writes")
	a.kubeconfig(path, `{"token":"`+token+`"}`)
	if err := c.Problem(t.Context()); err != nil {
		t.Errorf("with a kubeconfig: %v", err)
	}
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	if got := a.got(); len(got) != 0 {
		t.Errorf("got requests %v, want none", got)
	}
	wantUnavailable(t, c.call(t.Context(), callFind), "500")
	wantUnavailable(t, c.Problem(t.Context()), "500")
	a.kubeconfig(path, `{"token":"other"}`) // it ends the pause
	if err := c.Problem(t.Context()); err != nil {
		t.Errorf("with another kubeconfig: %v", err)
	}
	if got := a.got(); len(got) != 1 {
		t.Errorf("got requests %v, want that of the call", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantUnavailable(t, c.Problem(t.Context()), "no such file")
}

// TestChangedKubeconfig checks that a call uses a changed file at once, also after a failure, and that the connections
// of the one before are closed.
func TestChangedKubeconfig(t *testing.T) {
	a, other := startServer(t), startServer(t)
	c, _ := a.client()
	path := c.sessions.config.Kubeconfig
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	first := a.got()[0]
	if first.authorization != "Bearer "+token {
		t.Errorf("got credential %q", first.authorization)
	}
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	wantUnavailable(t, c.call(t.Context(), callFind), "500")
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")

	other.kubeconfig(path, `{"token":"other"}`)
	if err := c.call(t.Context(), callFind); err != nil {
		t.Errorf("with another kubeconfig: %v", err)
	}
	if got := other.got(); len(got) != 1 || got[0].authorization != "Bearer other" {
		t.Errorf("got requests %v", got)
	}
	a.awaitClosed(first.remote)
	// A file that did not change is not read again.
	if err := c.call(t.Context(), callFind); err != nil {
		t.Error(err)
	}
}

// certificates is a directory with a client certificate as kubelet has it: a link to a file with certificate and key.
type certificates struct {
	*authority
	link string
	n    int
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	c := &certificates{authority: newAuthority(t), link: filepath.Join(t.TempDir(), "kubelet-client-current.pem")}
	c.rotate()
	return c
}

// rotate issues the next certificate (updateSymlink in k8s.io/client-go/util/certificate/certificate_store.go).
func (c *certificates) rotate() {
	c.t.Helper()
	cert, key := c.issue()
	c.n++
	file := fmt.Sprintf("%s.%d", c.link, c.n)
	if err := os.WriteFile(file, []byte(cert+key), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Symlink(file, c.link+".new"); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.link+".new", c.link); err != nil {
		c.t.Fatal(err)
	}
}

func (c *certificates) user() string {
	return fmt.Sprintf(`{"client-certificate":%q,"client-key":%q}`, c.link, c.link)
}

// TestRotatedCertificate rotates the certificate while calls are made. Each call uses the certificate of the moment, none
// fails, and the connections of the old one are closed.
func TestRotatedCertificate(t *testing.T) {
	a := startServer(t)
	certs := newCertificates(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	a.kubeconfig(path, certs.user())
	c, _ := newClient(t, path)

	// One call takes as long as all of this. It is not interrupted.
	started, end, long := make(chan struct{}), make(chan struct{}), make(chan error)
	a.on(func(http.ResponseWriter, *http.Request) bool { a.on(nil); close(started); <-end; return false })
	go func() { long <- c.call(t.Context(), callFind) }()
	<-started
	slow := a.got()[0]

	before := ""
	for i := range 5 {
		for range 3 {
			if err := c.call(t.Context(), callFind); err != nil {
				t.Fatal(err)
			}
		}
		requests := a.got()
		for _, r := range requests {
			if want := fmt.Sprint(2 + i); r.peer != want || r.remote != requests[0].remote || r.remote == before {
				t.Errorf("got certificate %s from %s, want %s on a connection of its own", r.peer, r.remote, want)
			}
		}
		if before != "" && before != slow.remote {
			a.awaitClosed(before)
		}
		before = requests[0].remote
		certs.rotate()
	}
	close(end)
	if err := <-long; err != nil {
		t.Errorf("the call that was made during the rotations: %v", err)
	}
	a.awaitClosed(slow.remote)
}

// TestUnauthorizedRecovers checks that a call whose credential is rotated after the call has begun succeeds.
func TestUnauthorizedRecovers(t *testing.T) {
	t.Run("certificate", func(t *testing.T) {
		a := startServer(t)
		certs := newCertificates(t)
		path := filepath.Join(t.TempDir(), "kubeconfig")
		a.kubeconfig(path, certs.user())
		c, _ := newClient(t, path)
		for _, call := range []string{callFind, callClaim} {
			expired := fmt.Sprint(certs.last)
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.TLS.PeerCertificates[0].SerialNumber.String() != expired {
					return false
				}
				certs.rotate()
				refuse(w, apierrors.NewUnauthorized("Unauthorized"))
				return true
			})
			if err := c.call(t.Context(), call); err != nil {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
	t.Run("expired, and rotated after the failure", func(t *testing.T) {
		a := startServer(t)
		certs := newCertificates(t)
		path := filepath.Join(t.TempDir(), "kubeconfig")
		a.kubeconfig(path, certs.user())
		c, _ := newClient(t, path)
		a.on(func(w http.ResponseWriter, r *http.Request) bool {
			if r.TLS.PeerCertificates[0].SerialNumber.String() != "2" {
				return false
			}
			refuse(w, apierrors.NewUnauthorized("Unauthorized"))
			return true
		})
		wantUnavailable(t, c.call(t.Context(), callFind), "401 Unauthorized")
		if got := len(a.got()); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
		wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")
		certs.rotate()
		if err := c.call(t.Context(), callFind); err != nil {
			t.Errorf("with the rotated certificate: %v", err)
		}
	})
	t.Run("token file", func(t *testing.T) {
		a := startServer(t)
		dir := t.TempDir()
		path := filepath.Join(dir, "kubeconfig")
		replace(t, filepath.Join(dir, "token"), "one")
		a.kubeconfig(path, `{"tokenFile":"token"}`)
		c, _ := newClient(t, path)
		valid := "Bearer one"
		a.on(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Authorization") == valid {
				return false
			}
			refuse(w, apierrors.NewUnauthorized("Unauthorized"))
			return true
		})
		if err := c.call(t.Context(), callFind); err != nil {
			t.Fatal(err)
		}
		valid = "Bearer two"
		replace(t, filepath.Join(dir, "token"), "two")
		a.got()
		if err := c.call(t.Context(), callFind); err != nil {
			t.Errorf("with the new token: %v", err)
		}
		if got := len(a.got()); got != 1 {
			t.Errorf("%d requests, want 1 with the new token", got)
		}
	})
	t.Run("credential plugin", func(t *testing.T) {
		a := startServer(t)
		path := filepath.Join(t.TempDir(), "kubeconfig")
		file := filepath.Join(t.TempDir(), "token")
		replace(t, file, "one")
		a.kubeconfig(path, plugin(`printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$(cat `+file+`)"`))
		c, _ := newClient(t, path)
		valid := "Bearer one"
		a.on(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Authorization") == valid {
				return false
			}
			refuse(w, apierrors.NewUnauthorized("Unauthorized"))
			return true
		})
		if err := c.call(t.Context(), callFind); err != nil {
			t.Fatal(err)
		}
		valid = "Bearer two"
		replace(t, file, "two")
		if err := c.call(t.Context(), callClaim); err != nil {
			t.Errorf("with the new token: %v", err)
		}
	})
}

// plugin is the user of a kubeconfig with a credential plugin, which is a shell script.
func plugin(script string) string {
	return fmt.Sprintf(`{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/sh","args":["-c",%q],"interactiveMode":"IfAvailable"}}`, script)
}

// TestPluginThatHangs checks that the timeout also holds for a credential plugin, and that its late token is used.
func TestPluginThatHangs(t *testing.T) {
	a := startServer(t)
	dir := t.TempDir()
	path, fifo, started := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "fifo"), filepath.Join(dir, "started")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	a.kubeconfig(path, plugin(": > "+started+"; cat "+fifo))
	c, clock := newClient(t, path)
	c.timeout = 50 * time.Millisecond
	for runs := false; !runs; {
		wantUnavailable(t, c.call(t.Context(), callFind), "did not answer in time")
		clock.advance(maxPause)
		// On a busy machine, the time can be over before the plugin is started.
		_, err := os.Stat(started)
		runs = err == nil
	}
	wantUnavailable(t, c.call(t.Context(), callFind), "did not answer in time")
	wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")

	// The plugin exits.
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"late"}}`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(maxPause)
	c.timeout = time.Minute
	if err := c.call(t.Context(), callFind); err != nil {
		t.Fatal(err)
	}
	if got := a.got(); len(got) == 0 || got[len(got)-1].authorization != "Bearer late" {
		t.Errorf("got requests %v, want one with the token", got)
	}
}

// TestPluginThatFails checks the error of a credential plugin.
func TestPluginThatFails(t *testing.T) {
	a := startServer(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	a.kubeconfig(path, plugin("echo "+token+"; exit 3"))
	c, _ := newClient(t, path)
	err := c.call(t.Context(), callFind)
	wantUnavailable(t, err, "getting credentials: exec: executable /bin/sh failed with exit code 3")
	if strings.Contains(err.Error(), token) {
		t.Errorf("the error has the token: %v", err)
	}
}
