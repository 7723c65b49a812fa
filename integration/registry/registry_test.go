package registry_test

import (
	"io"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/imagepin/imagepin/integration/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (*registry.Registry, func(method, path string, header ...string) (int, string, error)) {
	t.Helper()
	r, err := registry.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return r, func(method, path string, header ...string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, r.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, string(body), err
	}
}

// TestBlobsByRepository checks that a repository has its own blobs only: otherwise tests of access would find nothing.
func TestBlobsByRepository(t *testing.T) {
	r, do := start(t)
	h := r.PushBlob("private/app", []byte("0123456789"))
	for path, want := range map[string]int{"/v2/private/app/blobs/": 200, "/v2/evil/x/blobs/": 404} {
		if code, _, err := do("GET", path+h.String()); err != nil || code != want {
			t.Errorf("%s: got status %d, %v, want %d", path, code, err, want)
		}
	}
	for header, want := range map[string]string{"bytes=4-": "456789", "bytes=2-3": "23"} {
		if code, body, err := do("GET", "/v2/private/app/blobs/"+h.String(), "Range", header); err != nil || code != 206 || body != want {
			t.Errorf("range %s: got status %d, %q, %v, want 206, %q", header, code, body, err, want)
		}
	}
	if code, _, err := do("GET", "/v2/private/app/blobs/"+h.String(), "Range", "bytes=10-"); err != nil || code != 416 {
		t.Errorf("range after the end: got status %d, %v, want 416", code, err)
	}
}
