package registry_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/registry"
)

// TestDrip checks that a body that hangs and drips goes on byte by byte, and is complete after the hang.
func TestDrip(t *testing.T) {
	r, _ := start(t)
	want := bytes.Repeat([]byte("0123456789"), 100)
	h := r.PushBlob("app", want)
	held := make(chan struct{})
	r.SetFault(registry.FaultIf(registry.Fault{Hang: held, After: 500, Drip: time.Millisecond}, registry.In("app")))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL()+"/v2/app/blobs/"+h.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, 503)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatalf("no bytes while the body hangs: %v", err)
	}
	close(held)
	rest, err := io.ReadAll(res.Body)
	if got := append(first, rest...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want the %d bytes of the blob", len(got), err, len(want))
	}
}
