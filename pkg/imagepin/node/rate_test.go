package node

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// The limit of an operator takes precedence over the configured one, also after a restart and a reload, until it is reset.
func TestDownloadRate(t *testing.T) {
	key := filepath.Join(t.TempDir(), "node.key")
	start := func(configured int64) *downloadRate {
		r := &downloadRate{}
		r.load(key, configured)
		return r
	}
	want := func(r *downloadRate, now, configured int64, changed bool) {
		t.Helper()
		w := &api.DownloadRate{BytesPerSecond: now, Configured: configured, Changed: changed}
		if got, err := r.limit(t.Context(), &api.LimitRateRequest{}); err != nil || !proto.Equal(got, w) || r.limiter.Rate() != now {
			t.Errorf("got %v, %v and limit %d, want %v", got, err, r.limiter.Rate(), w)
		}
	}
	limit := func(r *downloadRate, q *api.LimitRateRequest) {
		t.Helper()
		if _, err := r.limit(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	r := start(100)
	want(r, 100, 100, false)
	limit(r, &api.LimitRateRequest{BytesPerSecond: proto.Int64(7)})
	want(r, 7, 100, true)
	r.configure(50)
	want(r, 7, 50, true)
	r = start(60)
	want(r, 7, 60, true)
	limit(r, &api.LimitRateRequest{BytesPerSecond: proto.Int64(0)})
	want(start(60), 0, 60, true)
	limit(r, &api.LimitRateRequest{Reset_: true})
	want(r, 60, 60, false)
	r = start(70)
	want(r, 70, 70, false)

	// A damaged file is ignored, and replaced. What cannot be kept is not used.
	if err := os.WriteFile(r.path, []byte("fast"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = start(80)
	want(r, 80, 80, false)
	limit(r, &api.LimitRateRequest{BytesPerSecond: proto.Int64(9)})
	want(start(80), 9, 80, true)
	if err := os.RemoveAll(filepath.Dir(key)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.limit(t.Context(), &api.LimitRateRequest{BytesPerSecond: proto.Int64(11)}); err == nil {
		t.Error("a limit that cannot be kept is set")
	}
	want(r, 9, 80, true)
}
