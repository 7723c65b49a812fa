package command

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
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

// TestDeepCheckProgressOnATerminal checks that progress overwrites one line.
func TestDeepCheckProgressOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := &checkProgress{w: &out, overwrite: true}
	for _, message := range deepProgress() {
		if err := p.show(message.GetProgress()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\r\x1b[2Kread 5 of 5 blobs, 20MiB of 20MiB; 2 of 2 snapshots\n") {
		t.Errorf("got %q, want one line that is overwritten and ends with the last progress", got)
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
	code := Run(ctx, Stdio{Out: &out, Err: &errOut}, []string{"imagepin", "-a", address, "check", "--deep"})
	if code != exitInterrupted || errOut.String() != "imagepin: interrupted\n" {
		t.Errorf("exit code %d, printed %q", code, errOut.String())
	}
	<-ended
}

func TestDeepCheckRate(t *testing.T) {
	for args, want := range map[string]string{
		"check --rate 1MiB":        "--rate requires --deep",
		"check --deep --rate fast": "must be a size",
		"check --deep --rate=-1":   "must be a size",
	} {
		if got := runAt(t, "/nowhere.sock", nil, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d, printed %q", args, got.code, got.err)
		}
	}
}
