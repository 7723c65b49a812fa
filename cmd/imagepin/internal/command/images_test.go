package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// tagged returns a server of a node that has the same image by a tag and by a digest.
func tagged() *control {
	c := recorded()
	c.images.Keys = []*api.Key{appKey(), digestKey(), armKey()}
	return c
}

// digestKey is the reference by digest of the image of appKey.
func digestKey() *api.Key {
	k := appKey()
	k.Ref, k.Pin = k.Record, ""
	return k
}

// TestImagesFitATerminal checks that a table with usual names needs no more than 80 columns.
func TestImagesFitATerminal(t *testing.T) {
	var keys []*api.Key
	for _, name := range []string{"docker.io/library/nginx:1.29", "registry.k8s.io/kube-proxy:v1.36.3", "registry.example.com/shop/cart:v7"} {
		k := appKey()
		k.Ref, k.Handlers = name, []string{"runc"}
		keys = append(keys, k)
	}
	got := run(t, &control{images: &api.ImagesResponse{Keys: keys}}, "images")
	for line := range strings.Lines(got.out) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("line of %d characters: %s", n, line)
		}
	}
	if n := strings.Count(got.out, "\n"); n != 4 {
		t.Errorf("got %d lines, want 4:\n%s", n, got.out)
	}
}

func TestImageIDs(t *testing.T) {
	got := run(t, tagged(), "images", "-q")
	if got.code != 0 || got.out != imageID+"\n" {
		t.Errorf("exit code %d, printed %q", got.code, got.out)
	}
	for _, args := range []string{"images -q -o json", "images -q --watch"} {
		failed(t, runAt(t, "/absent", nil, strings.Fields(args)...), "--quiet excludes --watch, and --output other than table")
	}
}

// watched runs images --watch against a server whose images change from one list to the next, and interrupts it.
func watched(t *testing.T, args ...string) result {
	t.Helper()
	moved := appKey()
	moved.ImageId = digestNew
	lists := [][]*api.Key{
		{appKey(), digestKey()},
		{appKey(), digestKey()},
		{moved, digestKey()}, // lists the digest, because no tag has its image
		{moved},
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &control{images: &api.ImagesResponse{Keys: lists[0]}}
	calls := 0
	c.during = func(context.Context) {
		switch calls++; {
		case calls < len(lists):
			c.images = &api.ImagesResponse{Keys: lists[calls]}
		case calls > len(lists): // the last list has arrived
			cancel(signalError{os.Interrupt})
		}
	}
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	var out, errOut bytes.Buffer
	a := &app{Stdio: Stdio{Out: &out, Err: &errOut}, now: func() time.Time { return testNow }, interval: time.Millisecond}
	code := a.run(ctx, append([]string{"imagepin", "--address", address, "images", "--watch"}, args...))
	return result{code, out.String(), errOut.String()}
}

func TestWatchImages(t *testing.T) {
	got := watched(t)
	if got.code != exitInterrupted || got.err != "" {
		t.Errorf("exit code %d, printed %q", got.code, got.err)
	}
	golden(t, "images-watch.table", got.out)
}

func TestWatchImagesAsJSON(t *testing.T) {
	d := json.NewDecoder(strings.NewReader(watched(t, "-o", "json").out))
	var events []string
	for d.More() {
		var event struct {
			Type   string
			Object struct{ Ref string }
		}
		if err := d.Decode(&event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event.Type+" "+event.Object.Ref)
	}
	digest := digestKey().GetRef()
	if want := []string{added + " " + appRef, added + " " + digest, modified + " " + appRef, deleted + " " + digest}; !slices.Equal(events, want) {
		t.Errorf("got %q, want %q", events, want)
	}
}

func TestWatchImagesAsYAML(t *testing.T) {
	got := watched(t, "-o", "yaml")
	if n := strings.Count(got.out, "---\nobject:\n"); n != 4 {
		t.Errorf("got %d documents, want 4:\n%s", n, got.out)
	}
}

func TestKeyChanges(t *testing.T) {
	a, b := appKey(), armKey()
	changed := proto.CloneOf(a)
	changed.Pin = workload
	for name, test := range map[string]struct {
		before, after []*api.Key
		want          []keyChange
	}{
		"first":     {nil, []*api.Key{a, b}, []keyChange{{added, a}, {added, b}}},
		"unchanged": {[]*api.Key{a, b}, []*api.Key{b, proto.CloneOf(a)}, nil},
		"modified":  {[]*api.Key{a, b}, []*api.Key{changed, b}, []keyChange{{modified, changed}}},
		"deleted":   {[]*api.Key{a, b}, []*api.Key{b}, []keyChange{{deleted, a}}},
	} {
		if got := keyChanges(test.before, test.after); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
