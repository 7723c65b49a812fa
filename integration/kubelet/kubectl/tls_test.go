package kubectl

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// tlsRegistry is a registry that serves HTTPS for the hosts of example.com, to clients that use its proxy and trust its
// certificate.
type tlsRegistry struct {
	*registry
	tls, proxy *httptest.Server
	denies     atomic.Bool // whether it requires a credential
}

func startTLSRegistry(t *testing.T) *tlsRegistry {
	t.Helper()
	r := &tlsRegistry{registry: startRegistry()}
	t.Cleanup(r.close)
	r.tls = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.denies.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		r.server.Config.Handler.ServeHTTP(w, req)
	}))
	t.Cleanup(r.tls.Close)
	r.proxy = httptest.NewServer(http.HandlerFunc(r.connect))
	t.Cleanup(r.proxy.Close)
	return r
}

// connect connects each client of the proxy to the registry.
func (r *tlsRegistry) connect(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect {
		http.Error(w, "only HTTPS is served", http.StatusBadGateway)
		return
	}
	server, err := net.Dial("tcp", r.tls.Listener.Addr().String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer server.Close()
	w.WriteHeader(http.StatusOK)
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	go func() {
		_, _ = io.Copy(server, buffered)
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// certificate returns the certificate that clients have to trust, in PEM.
func (r *tlsRegistry) certificate() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.tls.Certificate().Raw})
}
