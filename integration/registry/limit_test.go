package registry_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestLimit checks that the limited address sends what the registry has, also ranges of it, and not faster than the
// limit, which is that of each connection.
func TestLimit(t *testing.T) {
	r, _ := start(t)
	const limit, burst = 8 << 20, 1 << 20 // bytes in a second, bytes
	parts := [][]byte{bytes.Repeat([]byte("a"), 1<<20), []byte("between"), bytes.Repeat([]byte("b"), 2<<20)}
	content := bytes.Join(parts, nil)
	digest, size, err := v1.SHA256(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	r.PutBlob("team/app", digest, parts...)
	host, err := r.Limit(limit)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		header string
		status int
		want   []byte
	}{
		{"", http.StatusOK, content},
		{"bytes=1048570-1048590", http.StatusPartialContent, content[1048570:1048591]},
		{"bytes=1048580-", http.StatusPartialContent, content[1048580:]},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/v2/team/app/blobs/"+digest.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			req.Header.Set("Range", c.header)
		}
		start := time.Now()
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		took := time.Since(start)
		if res.StatusCode != c.status || !bytes.Equal(body, c.want) {
			t.Errorf("range %q: got status %d and %d bytes, want %d and %d bytes, and the same", c.header, res.StatusCode, len(body), c.status, len(c.want))
		}
		if least := time.Duration(len(c.want)-burst) * time.Second / limit; took < least {
			t.Errorf("range %q: %d bytes took %s, want at least %s", c.header, len(body), took, least)
		}
	}
	if got := r.Count(); got != 3 {
		t.Errorf("got %d requests in the record, want 3 of %d bytes:\n%s", got, size, r.Dump())
	}
}
