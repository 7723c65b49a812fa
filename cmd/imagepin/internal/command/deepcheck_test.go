package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

func TestDeepCheckProgress(t *testing.T) {
	got := run(t, recorded(), "check", "--deep")
	want := `read 1 of 5 blobs, 4MiB of 20MiB; 0 of 2 snapshots
read 2 of 5 blobs, 8MiB of 20MiB; 0 of 2 snapshots
read 3 of 5 blobs, 12MiB of 20MiB; 0 of 2 snapshots
read 4 of 5 blobs, 16MiB of 20MiB; 0 of 2 snapshots
read 5 of 5 blobs, 20MiB of 20MiB; 0 of 2 snapshots
`
	if got.err != want {
		t.Errorf("standard error: got\n%s\nwant\n%s", got.err, want)
	}
}

// TestDeepCheckProgressOnATerminal checks that progress overwrites two lines with the rate and the remaining time, which
// count only while content is read.
func TestDeepCheckProgressOnATerminal(t *testing.T) {
	now := testNow
	for _, width := range []int{80, 40} {
		var out bytes.Buffer
		p := &checkBar{w: &out, now: func() time.Time { return now }, width: func() int { return width }}
		for _, message := range deepProgress() {
			if err := p.show(message.GetProgress()); err != nil {
				t.Fatal(err)
			}
			now = now.Add(2 * time.Second)
		}
		var screen []string
		for i, picture := range strings.Split(out.String(), clearLine+clearLine) {
			screen = append(screen, fmt.Sprintf("%d s\n%s", 2*i, picture))
		}
		golden(t, fmt.Sprintf("check-bar-%d.txt", width), strings.Join(screen, ""))
		for line := range strings.Lines(strings.ReplaceAll(out.String(), clearLine, "")) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > width {
				t.Errorf("a line has %d columns: %q", n, line)
			}
		}
	}
}

// TestDeepCheckOfNothing checks that there is no rate without content.
func TestDeepCheckOfNothing(t *testing.T) {
	var out bytes.Buffer
	p := &checkBar{w: &out, now: func() time.Time { return testNow }, width: func() int { return 80 }}
	if err := p.show(&api.DeepCheckProgress{}); err != nil || !strings.HasSuffix(out.String(), "| 100%  elapsed: 0.0s\n") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestDeepCheckWithoutResult(t *testing.T) {
	c := recorded()
	c.check = nil
	if got := run(t, c, "check", "--deep"); got.code != 1 || !strings.HasSuffix(got.err, "imagepin: containerd ended the check without a result\n") {
		t.Errorf("exit code %d, printed %q", got.code, got.err)
	}
}

// TestDeepCheckInterrupted checks that Ctrl-C cancels the call and prints a message.
func TestDeepCheckInterrupted(t *testing.T) {
	c := recorded()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	c.during = func(ctx context.Context) {
		cancel(signalError{os.Interrupt})
		<-ctx.Done()
		close(ended)
	}
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	var out, errOut bytes.Buffer
	code := Run(ctx, Stdio{Out: &out, Err: &errOut}, node.Parts{}, []string{"imagepin", "-a", address, "check", "--deep"})
	if code != exitInterrupted || errOut.String() != "imagepin: interrupted\n" {
		t.Errorf("exit code %d, printed %q", code, errOut.String())
	}
	<-ended
}

func TestDeepCheckRate(t *testing.T) {
	for args, want := range map[string]string{
		"check --rate 1MiB":        "--rate requires --deep",
		"check --remove-exited":    "--remove-exited requires --repair",
		"check --deep --rate fast": "must be a size",
		"check --deep --rate=-1":   "must be a size",
	} {
		if got := runAt(t, "/nowhere.sock", nil, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d, printed %q", args, got.code, got.err)
		}
	}
}
