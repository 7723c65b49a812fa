package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

const (
	namespace = "shop"
	nodeName  = "n1"
	token     = "s3cret-token"
	tag       = "registry.example.com/shop/web:v7"
	digestA   = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB   = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// apiServer plays the API server: it stores ImagePins and the metadata of other objects, and counts, delays and breaks
// requests. Its tests are those of the real API server in integration/kubelet/claims, which run the same calls.
type apiServer struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	user     user
	objects  map[string]metav1.PartialObjectMetadata // by path
	pins     map[string]v1alpha1.ImagePin            // by path
	requests []gotRequest
	// intercept answers a request instead of the server if it returns true.
	intercept func(http.ResponseWriter, *http.Request) bool
	closed    map[string]chan struct{} // by remote address, closed with the connection
}

// gotRequest is a request that the server got.
type gotRequest struct {
	method, path, query, accept, remote, authorization, userAgent string
	peer                                                          string // serial number of the client certificate
}

func startServer(t *testing.T) *apiServer {
	t.Helper()
	a := newServer(t)
	a.StartTLS()
	return a
}

// newServer returns a server that is not started.
func newServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{
		t: t, user: user{Username: "system:node:" + nodeName},
		objects: map[string]metav1.PartialObjectMetadata{}, pins: map[string]v1alpha1.ImagePin{}, closed: map[string]chan struct{}{},
	}
	a.Server = httptest.NewUnstartedServer(a)
	a.EnableHTTP2 = true
	a.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	a.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	a.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(a.connection(c.RemoteAddr().String()))
		}
	}
	t.Cleanup(a.Close)
	return a
}

// connection returns the channel that is closed with a connection.
func (a *apiServer) connection(remote string) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed[remote] == nil {
		a.closed[remote] = make(chan struct{})
	}
	return a.closed[remote]
}

// awaitClosed waits until the connection from an address is closed.
func (a *apiServer) awaitClosed(remote string) {
	a.t.Helper()
	select {
	case <-a.connection(remote):
	case <-time.After(30 * time.Second):
		a.t.Errorf("the connection from %s is open", remote)
	}
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got := gotRequest{
		method: r.Method, path: r.URL.Path, query: r.URL.RawQuery, accept: r.Header.Get("Accept"), remote: r.RemoteAddr,
		authorization: r.Header.Get("Authorization"), userAgent: r.UserAgent(),
	}
	if len(r.TLS.PeerCertificates) > 0 {
		got.peer = r.TLS.PeerCertificates[0].SerialNumber.String()
	}
	a.mu.Lock()
	a.requests = append(a.requests, got)
	intercept := a.intercept
	a.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.URL.Path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		review := selfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
		review.Status.UserInfo = a.user
		respond(w, http.StatusCreated, review)
	case strings.HasSuffix(r.URL.Path, "/imagepins") && r.Method == http.MethodPost:
		a.create(w, r)
	case strings.Contains(r.URL.Path, "/imagepins/"):
		if pin, ok := a.pins[r.URL.Path]; ok {
			respond(w, http.StatusOK, pin)
		} else {
			refuse(w, apierrors.NewNotFound(schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}, filepath.Base(r.URL.Path)))
		}
	default:
		if meta, ok := a.objects[r.URL.Path]; ok {
			meta.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
			respond(w, http.StatusOK, meta)
		} else {
			refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, filepath.Base(r.URL.Path)))
		}
	}
}

func (a *apiServer) create(w http.ResponseWriter, r *http.Request) {
	var pin v1alpha1.ImagePin
	if err := json.NewDecoder(r.Body).Decode(&pin); err != nil {
		a.t.Errorf("POST: %v", err)
	}
	if pin.Kind != "ImagePin" || pin.APIVersion != "imagepin.io/v1alpha1" {
		a.t.Errorf("POST of %s %s", pin.APIVersion, pin.Kind)
	}
	path := r.URL.Path + "/" + pin.Name
	if _, ok := a.pins[path]; ok {
		refuse(w, apierrors.NewAlreadyExists(schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}, pin.Name))
		return
	}
	pin.UID = types.UID(fmt.Sprintf("pin-%d", len(a.requests)))
	pin.CreationTimestamp = metav1.NewTime(time.Unix(1700000000, 0))
	a.pins[path] = pin
	respond(w, http.StatusCreated, pin)
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

// refuse answers with a Status, as the API server does.
func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(status.Details.RetryAfterSeconds))
	}
	respond(w, int(status.Code), status)
}

// on sets the function that answers requests instead of the server if it returns true.
func (a *apiServer) on(intercept func(http.ResponseWriter, *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.intercept = intercept
}

// answer answers all requests with a handler.
func (a *apiServer) answer(handler http.HandlerFunc) {
	a.on(func(w http.ResponseWriter, r *http.Request) bool { handler(w, r); return true })
}

// got returns the requests since the last call.
func (a *apiServer) got() []gotRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.requests
	a.requests = nil
	return got
}

func (a *apiServer) addPod(name string, uid types.UID, edit func(*metav1.PartialObjectMetadata)) Pod {
	meta := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
	if edit != nil {
		edit(&meta)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects["/api/v1/namespaces/"+namespace+"/pods/"+name] = meta
	return Pod{Namespace: namespace, Name: name, UID: uid}
}

// ca returns the server's certificate in PEM.
func (a *apiServer) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
}

// kubeconfig writes a kubeconfig for the server, with a user in JSON.
func (a *apiServer) kubeconfig(path, user string) {
	writeKubeconfig(a.t, path, a.URL, a.ca(), user)
}

func writeKubeconfig(t *testing.T, path, url string, ca []byte, user string) {
	t.Helper()
	caData, err := json.Marshal(ca)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"%s","certificate-authority-data":%s}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":%s}]}`, url, caData, user))
}

// replace writes a file in one step, as kubelet does.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// tokenUser is the user of a kubeconfig with a token.
const tokenUser = `{"token":"` + token + `"}`

// client returns a client of the server, and the time that its pauses depend on. Its calls do not wait when the server
// asks for that.
func (a *apiServer) client() (*Client, *testClock) {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), "kubeconfig")
	a.kubeconfig(path, tokenUser)
	return newClient(a.t, path)
}

func newClient(t *testing.T, kubeconfig string) (*Client, *testClock) {
	t.Helper()
	c, err := New(Config{Kubeconfig: kubeconfig, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	clock := &testClock{now: time.Unix(1700000000, 0)}
	c.server.now, c.pins.now = clock.Now, clock.Now
	return c, clock
}

// testClock is a clock that stands still.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// webOwner is the owner of a pod of a ReplicaSet.
func webOwner() Owner {
	no := false
	return Owner{
		Owner:     v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9c", UID: "rs-1"},
		Namespace: namespace,
		Reference: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9c", UID: "rs-1", BlockOwnerDeletion: &no},
	}
}

var webPod = Pod{Namespace: namespace, Name: "web-7d4b9c-x", UID: "pod-1"}

const pinsPath = "/apis/imagepin.io/v1alpha1/namespaces/" + namespace + "/imagepins"

// connKey is the key of a request's connection in its context.
type connKey struct{}

// drop closes the connection of a request without an answer.
func drop(r *http.Request) {
	r.Context().Value(connKey{}).(net.Conn).Close()
}
