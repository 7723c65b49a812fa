package registry_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imagepin/imagepin/integration/images"
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

func TestRecords(t *testing.T) {
	r, do := start(t)
	img, err := images.App(t.Context(), images.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Push("team/app:v1", img)
	if err != nil {
		t.Fatal(err)
	}
	if r.Count() != 0 {
		t.Errorf("got requests of a push, want none:\n%s", r.Dump())
	}
	for _, path := range []string{"/v2/", "/v2/team/app/manifests/v1", "/v2/team/app/manifests/" + d.String(), "/v2/other/manifests/v1"} {
		if _, _, err := do("GET", path); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, q := range r.Requests() {
		got = append(got, q.String()[2:])
	}
	raw, _ := img.RawManifest()
	want := []string{"GET /v2/ → 200", "GET /v2/team/app/manifests/v1 → 200", "GET /v2/team/app/manifests/" + d.String() + " → 200", "GET /v2/other/manifests/v1 → 404"}
	for i := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("got requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	q := r.Requests()[2]
	if q.Kind != registry.Manifest || q.Repository != "team/app" || !q.ByDigest() || q.Bytes != int64(len(raw)) {
		t.Errorf("got request %+v", q)
	}
	r.Reset()
	if r.Count() != 0 {
		t.Error("got requests after Reset, want none")
	}
}

func TestMoveAndDeleteTags(t *testing.T) {
	r, do := start(t)
	push := func(ref, version string) string {
		img, err := images.App(t.Context(), images.Options{Version: version})
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.Push(ref, img)
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	first, second := push("app:v1", "1"), push("app:v1", "2")
	status := func(target string) int {
		code, _, err := do("GET", "/v2/app/manifests/"+target)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	if status(first) != 200 || status(second) != 200 {
		t.Error("a digest is missing after its tag has moved")
	}
	if err := r.Delete("app@" + second); err != nil {
		t.Fatal(err)
	}
	if status("v1") != 404 || status(second) != 404 || status(first) != 200 {
		t.Error("Delete by digest did not remove exactly that manifest and its tags")
	}
}

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

func TestFaults(t *testing.T) {
	r, do := start(t)
	h := r.PushBlob("app", []byte("0123456789"))
	path := "/v2/app/blobs/" + h.String()
	tests := []struct {
		name   string
		fault  registry.Fault
		status int
		body   string
		fails  bool
	}{
		{"none", registry.Fault{}, 200, "0123456789", false},
		{"status", registry.Fault{Status: 429, Header: http.Header{"Retry-After": {"1"}}, Body: "slow"}, 429, "slow", false},
		{"corrupt", registry.Fault{Corrupt: true, After: 3}, 200, "0122456789", false},
		{"truncate", registry.Fault{Truncate: true, After: 3}, 200, "012", true},
		{"abort", registry.Fault{Abort: true}, 0, "", true},
		{"delay", registry.Fault{Delay: time.Millisecond}, 200, "0123456789", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.SetFault(registry.FaultIf(test.fault))
			status, body, err := do("GET", path)
			if status != test.status || body != test.body || (err != nil) != test.fails {
				t.Errorf("got status %d, %q, %v, want %d, %q, error %t", status, body, err, test.status, test.body, test.fails)
			}
		})
	}
}

func TestHang(t *testing.T) {
	r, do := start(t)
	h := r.PushBlob("app", []byte("0123456789"))
	for _, after := range []int64{0, 4} {
		release := make(chan struct{})
		r.Reset()
		r.SetFault(registry.FaultIf(registry.Fault{Hang: release, After: after}))
		bodies := make(chan string, 1)
		go func() {
			_, body, _ := do("GET", "/v2/app/blobs/"+h.String())
			bodies <- body
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		q, err := r.Wait(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if q.Done {
			t.Error("the request is done before the release")
		}
		close(release)
		if body := <-bodies; body != "0123456789" {
			t.Errorf("after the release: got body %q", body)
		}
	}
}

func TestDownAndUp(t *testing.T) {
	r, do := start(t)
	host := r.Host()
	r.Down()
	if _, _, err := do("GET", "/v2/"); err == nil {
		t.Error("got a response after Down, want an error")
	}
	if err := r.Up(); err != nil {
		t.Fatal(err)
	}
	if code, _, err := do("GET", "/v2/"); err != nil || code != 200 || r.Host() != host {
		t.Errorf("after Up: got host %s, status %d, %v, want host %s, status 200", r.Host(), code, err, host)
	}
}

func TestRawManifests(t *testing.T) {
	r, do := start(t)
	raw := images.Malformed()["index-html"]
	d := r.PushRaw("app:broken", raw)
	for _, target := range []string{"broken", d.String()} {
		if code, body, err := do("GET", "/v2/app/manifests/"+target); err != nil || code != 200 || body != string(raw.Body) {
			t.Errorf("%s: got status %d, %q, %v, want 200, %q", target, code, body, err, raw.Body)
		}
	}
}
