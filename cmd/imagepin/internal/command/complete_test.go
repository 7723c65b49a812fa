package command

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/console"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// asCommand is the environment variable with which the test binary is the imagepin command.
const asCommand = "IMAGEPIN_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		ctx, stop := WithSignals(context.Background())
		code := Run(ctx, Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, node.Parts{}, os.Args)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// completions returns what completes the last of words, without descriptions.
func completions(t *testing.T, address string, words ...string) []string {
	t.Helper()
	got := runAt(t, address, nil, append([]string{completeName}, words...)...)
	if got.code != 0 || got.err != "" {
		t.Errorf("%q: exit code %d, printed %q", words, got.code, got.err)
	}
	var values []string
	for line := range strings.Lines(got.out) {
		value, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		values = append(values, value)
	}
	return values
}

func TestComplete(t *testing.T) {
	c := recorded()
	nginx := appKey()
	nginx.Ref = "docker.io/library/nginx:1.29"
	c.images.Keys = append(c.images.Keys, nginx)
	address := serveNode(t, c)
	digest := armKey().Ref
	for line, want := range map[string][]string{
		"pi":                                     {"pin"},
		"pin ":                                   {"ls", "set", "undo", "rm"},
		"pin ls --s":                             {"--scope"},
		"pin ls -o j":                            {"json", "jsonpath="},
		"pin -o json ":                           {"ls", "set", "undo", "rm"},
		"images --output=":                       {"--output=table", "--output=wide", "--output=json", "--output=yaml", "--output=go-template=", "--output=jsonpath="},
		"images -o=y":                            {"-o=yaml"},
		"images --output x --handler ":           {"kata", "runc"},
		"images --no-trunc --handler ":           {"kata", "runc"},
		"images x":                               nil,
		"pin ls --scope n":                       {"node"},
		"pin ls --scope workload/shop/p":         {workload},
		"inspect ":                               {nginx.Ref, appRef, digest},
		"inspect registry":                       {appRef, digest},
		"inspect registry.example.com/shop/app:": {appRef},
		"inspect nginx:":                         {"nginx:1.29"},
		"inspect " + appRef + " ":                nil,
		"pin rm " + appRef + " nginx:":           {"nginx:1.29"},
		"inspect -- -":                           nil,
		"pin set registry.example.com/shop/app:v": {appRef},
		"ev":                               {"events"},
		"events --ref nginx:":              {"nginx:1.29"},
		"diff nginx:":                      {"nginx:1.29"},
		"diff nginx:1.29 ":                 {digestOld},
		"diff " + appRef + " ":             {digestOld, digestNew},
		"pin set " + appRef + " sha256:22": {digestNew},
		"diff " + appRef + " sha256:22 ":   nil,
		"du --r":                           {"--ref"},
		"du --ref nginx:":                  {"nginx:1.29"},
		"config check ":                    {filesCandidate},
		"bundle verify ":                   {filesCandidate},
		"bundle --since ":                  {filesCandidate},
		"bundle x -o ":                     {filesCandidate},
		"serve --config /et":               {filesCandidate},
		"lock -f ":                         {filesCandidate},
		"lock -o ":                         {filesCandidate},
		"lock --check ":                    {filesCandidate},
		"lock --update nginx:":             {"nginx:1.29"},
		"lock s":                           {"status"},
		"lock status -o y":                 {"yaml"},
		"lock status --expect ":            {filesCandidate},
		"lock rm --p":                      {"--previous"},
		"apply ":                           {filesCandidate},
		"apply x ":                         nil,
		"apply --handler ":                 {"kata", "runc"},
		"apply --d":                        {"--dry-run", "--detach"},
		"ro":                               {"rollback"},
		"rollback ":                        nil,
		"help p":                           {"ps", "pull", "pin", "prune"},
		"help e":                           {"events", exitCodesTopic},
		"help pin r":                       {"rm"},
		"help nonsense ":                   nil,
		"completion p":                     {"pwsh"},
		"nonsense --nonsense ":             nil,
		"__c":                              nil,
	} {
		if got := completions(t, address, strings.Split(line, " ")...); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// TestCompleteWithTheAddressOfTheLine checks that a completion uses the flags that are typed already.
func TestCompleteWithTheAddressOfTheLine(t *testing.T) {
	address := serveNode(t, recorded())
	for _, line := range []string{"--address " + address, "-a " + address, "--address=unix://" + address} {
		words := append(strings.Fields(line), "resolve", "--handler", "")
		if got := completions(t, "/absent", words...); !slices.Equal(got, []string{"kata", "runc"}) {
			t.Errorf("%s: got %q", line, got)
		}
	}
}

// TestCompleteOmitsUnsafeValues checks that a completion inserts no text that a shell interprets.
func TestCompleteOmitsUnsafeValues(t *testing.T) {
	c := recorded()
	for _, scope := range []string{"node$(id)", "node;id", "node id", "node`id`", "node\x1b[2K"} {
		p := appPin()
		p.Scope = scope
		c.pins.Pins = append(c.pins.Pins, p)
	}
	if got := completions(t, serveNode(t, c), "pin", "ls", "--scope", "n"); !slices.Equal(got, []string{"node"}) {
		t.Errorf("got %q", got)
	}
}

// TestCompleteWithoutNode checks that a completion is silent if the node does not answer.
func TestCompleteWithoutNode(t *testing.T) {
	silent, hanging := listen(t)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	_, stock := serve(t, func(*grpc.Server) {})
	for _, address := range []string{"/absent", stock, hanging} {
		if got := completions(t, address, "inspect", ""); got != nil {
			t.Errorf("got %q", got)
		}
	}
	(<-accepted).Close()
	silent.Close()
}

// bash returns the output of a script in a bash with the completion of imagepin, without startup files. The commands
// that the completion runs are this test binary.
func bash(t *testing.T, address string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "imagepin")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile")
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "TERM=dumb", "INPUTRC=/dev/null", "PS1=> ", "PS0=",
		asCommand + "=1", "CONTAINERD_ADDRESS=" + address,
	}
	return cmd
}

const loadCompletion = `source <(imagepin completion bash)
`

// TestBashCompletion calls the function that bash calls, with the words as bash splits them.
func TestBashCompletion(t *testing.T) {
	address := serveNode(t, recorded())
	for _, test := range []struct {
		words, breaks, want string
	}{
		{`imagepin pi`, `:=`, "pin"},
		{`imagepin images -o y`, `:=`, "yaml"},
		{`imagepin images --output = y`, `:=`, "yaml"},
		{`imagepin images --output=y`, ``, "--output=yaml"},
		{`imagepin inspect registry.example.com/shop/app : v`, `:=`, "v1"},
		{`imagepin inspect registry.example.com/shop/app :`, `:=`, "v1"},
		{`imagepin inspect registry.example.com/shop/app:v`, ``, appRef},
		{`imagepin inspect registry.example.com/shop/app@sha256 : 1`, `:=`, strings.TrimPrefix(digestOld, "sha256:")},
		{`imagepin pin ls --scope workload/shop/pod-template-hash = 7`, `:=`, "7d4b9c"},
		{`imagepin pin ls --scope $(touch x)`, ``, ""},
	} {
		cmd := bash(t, address)
		cmd.Stdin = strings.NewReader(loadCompletion + `
COMP_WORDS=(` + quoted(test.words) + `) COMP_WORDBREAKS='` + test.breaks + `'
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
$(complete -p imagepin | sed 's/.*-F \([^ ]*\) .*/\1/')
echo "${COMPREPLY[*]}"
`)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != test.want+"\n" {
			t.Errorf("%s: %v: got %q, want %q", test.words, err, out, test.want)
		}
		if _, err := os.Stat(filepath.Join(cmd.Dir, "x")); err == nil {
			t.Errorf("%s: the completion ran a command of the line", test.words)
		}
	}
}

// quoted quotes each word for bash.
func quoted(words string) string {
	return "'" + strings.ReplaceAll(words, " ", "' '") + "'"
}

// TestBashOnATerminal completes with the key Tab, as bash splits lines by default, and runs the command.
func TestBashOnATerminal(t *testing.T) {
	for typed, want := range map[string]proto.Message{
		"inspect registry.example.com/shop/app:\t":          &api.InspectRequest{Ref: appRef},
		"insp\tregistry.example.com/shop/app@\t":            &api.InspectRequest{Ref: armKey().Ref},
		"pin ls --sc\tworkload/shop/pod\t":                  &api.PinsRequest{Scope: workload},
		"pin ls --scope=workload/shop/pod-template-hash=\t": &api.PinsRequest{Scope: workload},
	} {
		c := recorded()
		screen := typeInBash(t, serveNode(t, c), "imagepin "+typed+"\n")
		if !proto.Equal(c.request, want) {
			t.Errorf("%q: got request %v, want %v; screen: %q", typed, c.request, want, screen)
		}
	}
}

// typeInBash types keys in an interactive bash, exits it, and returns the screen.
func typeInBash(t *testing.T, address, keys string) (screen string) {
	t.Helper()
	pty, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	tty, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := bash(t, address)
	cmd.Args = append(cmd.Args, "-i")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pty.Write([]byte(loadCompletion + "echo loa''ded\n")); err != nil {
		t.Fatal(err)
	}
	screen = readUntil(t, pty, "loaded")
	if _, err := pty.Write([]byte(keys + "exit\n")); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(pty) // ends with an error when bash closes the terminal
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return screen + string(rest)
}
