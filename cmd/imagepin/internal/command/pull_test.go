package command

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/console"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

func TestPullProgressIsNotInJSON(t *testing.T) {
	got := run(t, recorded(), "pull", appRef, "-o", "json")
	if !strings.HasPrefix(got.out, "{") || strings.Contains(got.out, "downloading") {
		t.Errorf("standard output is not only JSON: %s", got.out)
	}
	if !strings.Contains(got.err, "layer 666666666666: downloading 5MiB\n") {
		t.Errorf("standard error has no progress: %s", got.err)
	}
}

const registryDown = "CannotPullImageManifest: app: connection refused\nCheck the network to the registry and its mirrors."

// TestPullWithoutRegistry warns that the registry was not available, without the password, and succeeds.
func TestPullWithoutRegistry(t *testing.T) {
	for _, format := range []string{outputTable, outputJSON} {
		c := recorded()
		c.pull = []*api.PullResponse{{Result: &api.PullResult{Key: appKey(), Done: "up_to_date", Fallback: registryDown + " hunter2"}}}
		got := run(t, c, "pull", "app", "-u", "bob:hunter2", "-o", format)
		want := "imagepin: warning: the registry did not resolve " + appRef + ", the image on the node is used: " + registryDown + " [password]\n"
		if got.code != 0 || got.err != want || strings.Contains(got.out, "hunter2") || strings.Contains(got.out, "is up to date") {
			t.Errorf("%s: exit code %d, printed %q and %q, want 0 and %q", format, got.code, got.out, got.err, want)
		}
	}
}

// TestPullOfAnotherPlatform warns that the image is that of another platform, and succeeds.
func TestPullOfAnotherPlatform(t *testing.T) {
	for _, format := range []string{outputTable, outputJSON} {
		c := recorded()
		c.pull = []*api.PullResponse{{Result: &api.PullResult{Key: appKey(), Done: "fetched", OtherPlatform: "linux/riscv64"}}}
		got := run(t, c, "pull", "app", "-o", format)
		want := "imagepin: warning: " + appRef + " is an image for linux/riscv64, not for " + appKey().GetTarget().GetPlatform() + ": it does not run here without emulation\n"
		if got.code != 0 || got.err != want || strings.Contains(got.out, "riscv64") != (format == outputJSON) {
			t.Errorf("%s: exit code %d, printed %q and %q, want 0 and %q", format, got.code, got.out, got.err, want)
		}
	}
}

func TestPullFailsAfterProgress(t *testing.T) {
	c := recorded()
	c.pull = c.pull[:3]
	c.err = status.Error(codes.Unavailable, "PullStalled: app")
	got := run(t, c, "pull", "app")
	if got.code != 1 || got.err != "imagepin: PullStalled: app\n" || !strings.Contains(got.out, "downloading") {
		t.Errorf("exit code %d, printed %q and %q", got.code, got.out, got.err)
	}
}

func TestPullWithoutResult(t *testing.T) {
	c := recorded()
	c.pull = c.pull[:3]
	got := run(t, c, "pull", "app")
	if got.code != 1 || got.err != "imagepin: containerd ended the pull without a result\n" {
		t.Errorf("exit code %d, printed %q", got.code, got.err)
	}
}

// newBars returns bars on a terminal of a size, and their output.
func newBars(width, height int) (*bars, *bytes.Buffer) {
	var out bytes.Buffer
	b := &bars{
		blobs: newBlobs(appRef), w: &out, color: true,
		size: func() (int, int) { return width, height }, start: testNow.Add(-2 * time.Second),
	}
	b.now = func() time.Time { return testNow }
	return b, &out
}

func TestBars(t *testing.T) {
	b, out := newBars(80, 24)
	if err := b.redraw(); err != nil || out.Len() > 0 {
		t.Fatalf("drew %q without progress: %v", out, err)
	}
	for _, message := range pulled() {
		if err := b.update(message.GetProgress()); err != nil {
			t.Fatal(err)
		}
		if err := b.redraw(); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "bars", strings.ReplaceAll(out.String(), "\x1b", "^"))
	if n := strings.Count(out.String(), clearLine); n != 2+6*4 {
		t.Errorf("overwrote %d lines, want %d", n, 2+6*4)
	}
}

// TestBarsWithoutColor checks that only the cursor moves if NO_COLOR is set.
func TestBarsWithoutColor(t *testing.T) {
	b, out := newBars(80, 24)
	b.color = false
	for _, message := range pulled()[:4] {
		if err := b.update(message.GetProgress()); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.redraw(); err != nil || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "|++++") {
		t.Errorf("%v: drew %q", err, out)
	}
}

// TestBarWhileExtracting checks that the bar of a layer moves, and shows the time, while containerd reports no bytes.
func TestBarWhileExtracting(t *testing.T) {
	b, _ := newBars(80, 24)
	extracting := &api.Progress{Digest: layerD, MediaType: layerType, Event: "extracting", Total: 5 << 20}
	if err := b.update([]*api.Progress{extracting}); err != nil {
		t.Fatal(err)
	}
	for elapsed, want := range map[time.Duration]string{
		0: "|+++-----| 0.0s", 3200 * time.Millisecond: "|--+++---| 3.2s", 500 * time.Millisecond: "|-----+++| 0.5s",
	} {
		b.now = func() time.Time { return testNow.Add(elapsed) }
		if got := b.bar(b.order[0], 10) + " " + b.detail(b.order[0]); got != want {
			t.Errorf("after %s: got %q, want %q", elapsed, got, want)
		}
	}
}

func TestTotal(t *testing.T) {
	b, _ := newBars(80, 24)
	if got := b.total(); got != "elapsed: 2.0s" {
		t.Errorf("without blobs: got %q", got)
	}
	of := func(digest, event string, offset int64) *api.Progress {
		return &api.Progress{Digest: digest, MediaType: layerType, Event: event, Offset: offset, Total: 8 << 20}
	}
	for _, test := range []struct {
		changes []*api.Progress
		want    string
	}{
		{[]*api.Progress{of(digestOld, "already exists", 0), of(layerD, "waiting", 0)}, "elapsed: 2.0s  total: 0B/8MiB"},
		{[]*api.Progress{of(layerD, "downloading", 2<<20)}, "elapsed: 2.0s  total: 2MiB/8MiB  1MiB/s  ETA 6s"},
		{[]*api.Progress{of(digestOld, "extracting", 0), of(layerD, "complete", 8<<20)}, "elapsed: 2.0s  total: 8MiB/8MiB  4MiB/s"},
	} {
		if err := b.update(test.changes); err != nil {
			t.Fatal(err)
		}
		if got := b.total(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	b.now = func() time.Time { return testNow.Add(2 * time.Second) }
	if got, want := b.total(), "elapsed: 4.0s  total: 8MiB/8MiB  4MiB/s"; got != want {
		t.Errorf("while unpacking: got %q, want %q", got, want)
	}
}

// TestNewProgress checks that a terminal that cannot move its cursor gets lines.
func TestNewProgress(t *testing.T) {
	pty, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	tty, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	for terminal, want := range map[string]string{"xterm": "*command.bars", "dumb": "*command.lines"} {
		t.Setenv("TERM", terminal)
		if got := fmt.Sprintf("%T", newProgress(tty, appRef, time.Now)); got != want {
			t.Errorf("TERM=%s: got %s, want %s", terminal, got, want)
		}
	}
	t.Setenv("TERM", "xterm")
	for value, color := range map[string]bool{"": true, "1": false} {
		t.Setenv(noColor, value)
		if got := newProgress(tty, appRef, time.Now).(*bars).color; got != color {
			t.Errorf("NO_COLOR=%q: got color %t", value, got)
		}
	}
}

// visibleText removes colors from a line.
func visibleText(line string) string {
	return strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "", clearLine, "").Replace(line)
}

func TestBarsDoNotWrap(t *testing.T) {
	for _, width := range []int{70, 80, 120, 300} {
		b, out := newBars(width, 24)
		b.image.name = "registry.example.com/" + strings.Repeat("very-", 60) + "long:v1"
		for _, message := range pulled()[:4] {
			if err := b.update(message.GetProgress()); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.redraw(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(visibleText(strings.TrimRight(line, "\n")))); n > width {
				t.Errorf("line of %d characters on a terminal of %d columns: %q", n, width, line)
			}
		}
	}
}

func TestBarsOnSmallTerminal(t *testing.T) {
	b, out := newBars(80, 5)
	var changes []*api.Progress
	for i, event := range []string{"complete", "downloading", "already exists", "downloading", "waiting", "waiting"} {
		d := "sha256:" + strings.Repeat(string(rune('a'+i)), 64)
		changes = append(changes, &api.Progress{Digest: d, MediaType: layerType, Event: event, Total: 100})
	}
	if err := b.update(changes); err != nil {
		t.Fatal(err)
	}
	if err := b.redraw(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 4 {
		t.Errorf("drew %d lines on a terminal of 5 lines, want 4: %q", n, out)
	}
	if strings.Contains(out.String(), "complete") || strings.Contains(out.String(), "exists") {
		t.Errorf("output shows finished blobs: %q", out)
	}
}

// TestOnATerminal pulls on a terminal: it prompts for the password without echo, and draws bars.
func TestOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv(noColor, "")
	pty, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	tty, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := recorded()
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	code := make(chan int, 1)
	go func() {
		a := &app{Stdio: Stdio{In: tty, Out: tty, Err: tty}, now: time.Now}
		code <- a.run(t.Context(), []string{"imagepin", "-a", address, "pull", appRef, "-u", "bob"})
		tty.Close()
	}()
	screen := readUntil(t, pty, "Password: ")
	if _, err := pty.Write([]byte("hunter2\n")); err != nil {
		t.Fatal(err)
	}
	screen += readUntil(t, pty, "Pin scope")
	if got := <-code; got != 0 {
		t.Fatalf("exit code %d: %s", got, screen)
	}
	if p := c.request.(*api.PullRequest).GetCredential().GetPassword(); p != "hunter2" {
		t.Errorf("got password %q, want hunter2", p)
	}
	if strings.Contains(screen, "hunter2") {
		t.Error("the password is echoed")
	}
	if !strings.Contains(screen, "\x1b[32m+++") {
		t.Errorf("no bars: %q", screen)
	}
}

// readUntil reads from a terminal until text appears.
func readUntil(t *testing.T, pty console.Console, text string) string {
	t.Helper()
	var screen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(screen.String(), text) {
		n, err := pty.Read(buf)
		screen.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v: %q", err, screen.String())
		}
	}
	return screen.String()
}
