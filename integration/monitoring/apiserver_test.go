package monitoring

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// apiServer refuses every request, as a Kubernetes API server can. The metrics of claims need no real one.
type apiServer struct {
	*httptest.Server
	kubeconfig string
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"BadRequest","code":400}`)
	}))
	t.Cleanup(s.Close)
	content := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"node",
"clusters":[{"name":"test","cluster":{"server":%q}}],"users":[{"name":"node","user":{"token":"t"}}],
"contexts":[{"name":"node","context":{"cluster":"test","user":"node"}}]}`, s.URL)
	if err := os.WriteFile(s.kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}
