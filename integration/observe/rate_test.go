package observe

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLimitRate checks that a pull waits for max_download_rate, goes on when an operator raises it, and that the limit of the
// operator is kept over a restart until it is reset.
func TestLimitRate(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: `[plugins."io.containerd.imagepin.v1.images"]` + "\nmax_download_rate = \"1\"\n"})
	ref, _ := r.PushImage("slow/app:v1", testkit.App(t, images.Options{Random: []images.Random{{Size: 1 << 20}}}))
	pull := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, ref, "") })
	testkit.Eventually(t, "the pull waits for the limit", func(ctx context.Context) (bool, error) {
		st, err := r.Control().Status(ctx, &api.StatusRequest{})
		return err == nil && len(st.Pulls) == 1 && st.Pulls[0].WaitsFor == "rate limit", err
	})
	want := func(out string, args ...string) {
		t.Helper()
		if got, code := r.Operator(args...); code != 0 || !strings.Contains(got, out) {
			t.Errorf("imagepin %s: exit code %d: %s, want %q", strings.Join(args, " "), code, got, out)
		}
	}
	want("1B/s\n", "limit-rate")
	want("no limit (configured: 1B/s)\n", "limit-rate", "0")
	if _, err := pull(); err != nil {
		t.Errorf("the pull: %v", err)
	}
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	want("Rate limit:  no limit (configured: 1B/s)\n", "status")
	want("1B/s\n", "limit-rate", "--reset")
	want("5B/s (configured: 1B/s)\n", "limit-rate", "5")
	kept := func() int {
		n := 0
		for _, dir := range []string{"*", "*/*"} { // those of containerd, and of imagepin serve
			all, err := filepath.Glob(r.Path(dir, "download-rate"))
			if err != nil {
				t.Fatal(err)
			}
			n += len(all)
		}
		return n
	}
	if n := kept(); n != 1 {
		t.Errorf("%d files with the limit", n)
	}
	want("", "uninstall", "--yes")
	if n := kept(); n != 0 {
		t.Errorf("%d files with the limit after uninstall", n)
	}
}
