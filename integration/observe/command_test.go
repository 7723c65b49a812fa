package observe

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/version"
)

// TestCommandVersion prints the versions of a node.
func TestCommandVersion(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	out, code := r.Operator("version", "-o", "json")
	var got struct {
		Server struct{ Imagepin, Containerd string }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if got.Server.Imagepin != version.Version || !strings.HasPrefix(got.Server.Containerd, "v2.") {
		t.Errorf("got %s", out)
	}
}

// TestCommandImages checks that the images of a node are listed once for each target, and that the values that a shell
// completes are those of the node.
func TestCommandImages(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets})
	ref := r.Reg.Ref("shop/app:v1")
	r.Version("shop/app:v1", "app")
	r.MustPull(ref, "")
	r.MustPull(ref, "native")
	for args, lines := range map[string]int{"images": 3, "images --all": 5, "images --handler native": 2, "images -q": 1} {
		if out, code := r.Operator(strings.Fields(args)...); code != 0 || strings.Count(out, "\n") != lines {
			t.Errorf("%s: exit code %d, want %d lines:\n%s", args, code, lines, out)
		}
	}
	for line, want := range map[string]string{
		"images --handler n":                       "native\n",
		"inspect " + strings.TrimSuffix(ref, "v1"): ref + "\n",
	} {
		if out, code := r.Operator(append([]string{"__complete"}, strings.Split(line, " ")...)...); code != 0 || out != want {
			t.Errorf("%s: exit code %d, completes %q, want %q", line, code, out, want)
		}
	}
}

// TestCommandWatch interrupts a watch after it has printed a new image.
func TestCommandWatch(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	cmd := exec.CommandContext(r.Ctx, filepath.Join(r.Options().BinDir, "imagepin"), "--address", r.Address(), "images", "--watch")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("got line %q, want %q: %v", lines.Text(), want, lines.Err())
		}
	}
	next("EVENT ")
	ref := r.Reg.Ref("shop/app:v1")
	r.Version("shop/app:v1", "app")
	r.MustPull(ref, "")
	next("ADDED     " + ref)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("got %v, want exit code 130", err)
	}
}

// TestCommandDeepCheck checks that a deep check shows its rate and the remaining time on a terminal, and nowhere else.
func TestCommandDeepCheck(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref, _ := r.PushImage("shop/app:v1", testkit.App(t, images.Options{Random: []images.Random{{Size: 2 << 20}}}))
	r.MustPull(ref, "")
	check := []string{filepath.Join(r.Options().BinDir, "imagepin"), "--address", r.Address(), "-o", "json", "check", "--deep", "--rate", "2MiB"}
	run := func(args ...string) (out, errOut string) {
		t.Helper()
		var stdout, stderr strings.Builder
		cmd := exec.CommandContext(r.Ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return stdout.String(), stderr.String()
	}
	out, errOut := run(check...)
	var got struct{ Checked int }
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Checked == 0 {
		t.Errorf("got %s: %v", out, err)
	}
	if !strings.Contains(errOut, " snapshots\n") || strings.ContainsAny(errOut, "\x1b|") || strings.Contains(errOut, "/s") {
		t.Errorf("without a terminal: got %q, want lines", errOut)
	}
	screen, _ := run("script", "-qec", strings.Join(check, " "), "/dev/null")
	for _, want := range []string{"\x1b[1A\x1b[2K\r", "|+", " 100%  elapsed: ", "MiB/s  ETA "} {
		if !strings.Contains(screen, want) {
			t.Errorf("on a terminal: got %q, want %q", screen, want)
		}
	}
}
