package apply

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// lockedImages returns the number of images of TestLargeLock.
func lockedImages(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_LOCK_IMAGES")
	if s == "" {
		return 100
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_LOCK_IMAGES: %v", err)
	}
	return n
}

// TestLargeLock applies a lock of many images on a node that has half of them, and restarts the node.
func TestLargeLock(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, LogLevel: "info"})
	total := lockedImages(t)
	half, all := map[string]string{}, map[string]string{}
	refs, digests := make([]string, total), make([]string, total)
	var pushing errgroup.Group
	pushing.SetLimit(8)
	for n := range total {
		pushing.Go(func() error {
			idx, err := images.DataIndex(images.Options{Files: []images.Files{{"/n": []byte(strconv.Itoa(n))}}}, images.HostPlatform())
			if err != nil {
				return err
			}
			ref := fmt.Sprintf("shop/app-%d:v1", n)
			d, err := r.Reg.Push(ref, idx)
			refs[n], digests[n] = r.Reg.Ref(ref), d.String()
			return err
		})
	}
	if err := pushing.Wait(); err != nil {
		t.Fatal(err)
	}
	for n := range total {
		all[refs[n]] = digests[n]
		if n < total/2 {
			half[refs[n]] = digests[n]
		}
	}
	timed := func(what string, do func()) {
		start := time.Now()
		do()
		rss, _, err := measure.RSS(r.PID())
		peak, perr := measure.PeakRSS(r.PID())
		if err != nil || perr != nil {
			t.Fatal(err, perr)
		}
		t.Logf("%s: %s, memory %.0f MiB, at most %.0f MiB", what, time.Since(start).Round(time.Millisecond), rss/(1<<20), peak/(1<<20))
	}
	apply := func(name string, locked map[string]string) {
		path := writeLock(r, name, locked)
		timed(fmt.Sprintf("apply %d images", len(locked)), func() { imagepinWants(r, 0, []string{"apply", path}, "Applied lock") })
	}
	status := func() {
		timed("lock status", func() {
			imagepinWants(r, 0, []string{"lock", "status"}, fmt.Sprintf("%d locked, %d ready", total, total))
		})
	}
	apply("half.yaml", half)
	apply("all.yaml", all)
	status()
	apply("again.yaml", all)
	r.Reg.Down()
	timed("start", func() { r.KillAndRestart(nil) })
	status()
	timed("rollback", func() { imagepinWants(r, 0, []string{"rollback"}, "Applied lock") })
	timed("lock rm", func() { imagepinWants(r, 0, []string{"lock", "rm"}) })
}
