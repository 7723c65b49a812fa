//go:build linux

package command

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/console"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// onTerminal runs imagepin against a control service, with a terminal of 80 columns as its standard output.
func onTerminal(t *testing.T, c *control, args ...string) string {
	t.Helper()
	pty, slave, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Resize(console.WinSize{Width: 80, Height: 24}); err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(slave, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	printed := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(pty) // it ends with EIO when the other side is closed
		printed <- strings.ReplaceAll(string(text), "\r\n", "\n")
	}()
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	var errOut bytes.Buffer
	a := &app{Stdio: Stdio{Out: out, Err: &errOut}, now: func() time.Time { return testNow }}
	a.run(t.Context(), append([]string{"imagepin", "--address", address}, args...))
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	text := <-printed
	if err := pty.Close(); err != nil {
		t.Error(err)
	}
	return text
}

// TestTerminal checks that tables truncate references on a terminal. TestOutput has those in a pipe, which are complete.
func TestTerminal(t *testing.T) {
	for name, test := range map[string]struct {
		control func() *control
		args    string
	}{
		"images": {tagged, "images --all"},
		"du":     {recorded, "du"},
	} {
		got := onTerminal(t, test.control(), strings.Fields(test.args)...)
		golden(t, name+"-terminal.table", got)
		for line := range strings.Lines(got) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 && name == "du" { // other tables do not know the width
				t.Errorf("%s: line of %d characters: %s", name, n, line)
			}
		}
	}
}
