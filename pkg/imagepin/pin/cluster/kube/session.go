package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// session is one state of the kubeconfig and of the files that it names, with connections of its own to the API server.
type session struct {
	rest       rest.Interface
	kubeconfig string
	server     string // host and port
	sleep      func(context.Context, time.Duration) error
	identity   *identity
	files      []file
	disconnect func()

	users   int // guarded by sessions.mu, like retired
	retired bool
}

// sessions has the current session. A session that is replaced closes its connections when its last call has ended.
//
// rest can follow a rotated client certificate itself, but only every five minutes
// (transport.CertCallbackRefreshDuration) and at a new connection, and then closes connections that are in use. Until
// then, requests on an open connection have the old certificate and fail with 401 when it has expired.
type sessions struct {
	config Config
	sleep  func(context.Context, time.Duration) error

	mu      sync.Mutex
	current *session
	closed  bool
}

var errClosed = errors.New("the client is closed")

// acquire returns the current session, which the caller releases. changed is true if the files differ from those of the
// session before.
func (s *sessions) acquire() (current *session, changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errClosed
	}
	var id *identity
	if s.current != nil {
		if changed = s.current.changed(); changed {
			s.retire(s.current)
		} else {
			id = s.current.identity
		}
	}
	if s.current == nil || s.current.retired {
		if s.current, err = s.open(id); err != nil {
			return nil, changed, err
		}
	}
	s.current.users++
	return s.current, changed, nil
}

func (s *sessions) release(used *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used.users--
	if used.retired && used.users == 0 {
		used.disconnect()
	}
}

// replace makes the next acquire return a session with other connections than used.
func (s *sessions) replace(used *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(used)
}

// retire is called with mu locked.
func (s *sessions) retire(used *session) {
	if used.retired {
		return
	}
	used.retired = true
	if used.users == 0 {
		used.disconnect()
	}
}

func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.current != nil {
		s.retire(s.current)
	}
}

// open reads the files. id is the identity of the credential in them, or nil if it is not known.
func (s *sessions) open(id *identity) (*session, error) {
	files := []file{stat(s.config.Kubeconfig)}
	config, err := load(s.config.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", s.config.Kubeconfig, withoutPasswords(err))
	}
	for _, name := range []string{config.CAFile, config.CertFile, config.KeyFile, config.BearerTokenFile} {
		if name != "" {
			files = append(files, stat(name))
		}
	}
	if id == nil {
		id = &identity{}
	}
	opened := &session{kubeconfig: s.config.Kubeconfig, sleep: s.sleep, identity: id, files: files}
	if err := opened.connect(config); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", s.config.Kubeconfig, withoutPasswords(err))
	}
	return opened, nil
}

// load returns the configuration of the kubeconfig's current context.
func load(path string) (*rest.Config, error) {
	kubeconfig, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(kubeconfig); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
}

// connect reads the certificates and creates the client. It makes no connection.
func (s *session) connect(config *rest.Config) error {
	// With the data instead of the names of the files, rest does not follow the files itself.
	if err := rest.LoadTLSFiles(config); err != nil {
		return err
	}
	config.UserAgent = "imagepin"
	config.ContentConfig = rest.ContentConfig{
		GroupVersion: &v1alpha1.GroupVersion, NegotiatedSerializer: codecs.WithoutConversion(),
		ContentType: "application/json", AcceptContentTypes: "application/json",
	}
	// There is no client-side rate limit. Calls wait for an image each, so their rate is low, and a limit would delay
	// pods. API Priority and Fairness limits clients where that is needed.
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{} // they would go to klog
	tracker := connrotation.NewConnectionTracker()
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as in client-go
	config.Dial = connrotation.NewDialerWithTracker(dialer.DialContext, tracker).DialContext
	if config.Proxy == nil {
		// The default, which has to be set so that rest does not cache transports: each session has its own.
		config.Proxy = http.ProxyFromEnvironment
	}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return limited{rt} })
	plugin := config.ExecProvider != nil
	if plugin {
		config.ExecProvider.StdinUnavailable = true
		config.ExecProvider.StdinUnavailableMessage = "imagepin has no terminal"
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	transport := client.Transport
	if plugin {
		client.Transport = detached{transport}
	}
	// An API server does not redirect. rest would send the token to the host of a redirect.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if s.rest, err = rest.UnversionedRESTClientForConfigAndClient(config, client); err != nil {
		return err
	}
	if server, _, err := rest.DefaultServerUrlFor(config); err == nil {
		s.server = server.Host // without the user name and the password that a URL can have
	}
	s.disconnect = func() {
		utilnet.CloseIdleConnectionsFor(transport) // also closes connections that are being dialed, when they are ready
		tracker.CloseAll()
	}
	return nil
}

// changed reports whether a file differs from what the session has read.
func (s *session) changed() bool {
	for _, f := range s.files {
		if !f.same(stat(f.path)) {
			return true
		}
	}
	return false
}

// file is the state of a file, after symbolic links. info is nil if it cannot be read.
type file struct {
	path string
	info os.FileInfo
}

func stat(path string) file {
	info, _ := os.Stat(path)
	return file{path, info}
}

func (f file) same(other file) bool {
	if f.info == nil || other.info == nil {
		return f.info == other.info
	}
	return os.SameFile(f.info, other.info) && f.info.Size() == other.info.Size() && f.info.ModTime().Equal(other.info.ModTime())
}
