package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// exampleHost is the registry in the documents. Each session has its own registry, which is a mirror of this host.
const exampleHost = "registry.example.com"

// session runs the items of a session on a node.
type session struct {
	*testkit.Rig
	dir  string // the directory in which commands run
	seen strings.Builder
	subscription
	// here replaces paths of the documents by those of the node, and there the other way round.
	here, there *strings.Replacer
}

// run runs the items of a session and passes each output to check.
func run(t *testing.T, items []transcript.Item, check func(transcript.Item, string)) {
	s := newSession(t, items[0].Text)
	for _, i := range items[1:] {
		switch i.Kind {
		case transcript.Step:
			s.step(i)
		case transcript.Output:
			check(i, s.step(i))
		case transcript.Command:
			check(i, s.command(i.Text))
		case transcript.Session, transcript.NotRun:
		}
		if t.Failed() {
			return // what follows needs what failed
		}
	}
}

func newSession(t *testing.T, name string) *session {
	t.Helper()
	opts, ok := sessions[name]
	if !ok {
		t.Fatalf("there is no session %q", name)
	}
	opts.NoPods, opts.LogLevel = true, "info"
	metrics := testkit.Address(t)
	opts.Extra = strings.ReplaceAll(opts.Extra, metricsAddress, metrics)
	s := &session{Rig: testkit.NewRig(t, opts), dir: t.TempDir()}
	if err := s.WriteHosts(exampleHost, node.Mirror(s.Reg.URL())); err != nil {
		t.Fatal(err)
	}
	pairs := [][2]string{
		{"/run/containerd/containerd.sock", s.ContainerdAddress()},
		{"/etc/imagepin/config.toml", s.ServeConfig()},
		{"/var/lib/containerd", s.Path("containerd")},
		{metricsAddress, metrics},
	}
	if opts.Mode == node.Serve {
		pairs = append(pairs, [2]string{"/run/imagepin/imagepin.sock", s.Address()})
	}
	var here, there []string
	for _, p := range pairs {
		here, there = append(here, p[0], p[1]), append(there, p[1], p[0])
	}
	s.here, s.there = strings.NewReplacer(here...), strings.NewReplacer(there...)
	return s
}

// command runs a command in a shell, and returns what it prints.
func (s *session) command(text string) string {
	s.T.Helper()
	cmd := exec.CommandContext(s.Ctx, "bash", "-c", s.here.Replace(transcript.Expand(text, s.seen.String())))
	bin, err := filepath.Abs(s.Options().BinDir)
	if err != nil {
		s.T.Fatal(err)
	}
	cmd.Dir = s.dir
	cmd.Env = append(cmd.Environ(), "PATH="+bin+":/usr/bin:/bin:/usr/sbin:/sbin", "CONTAINERD_ADDRESS="+s.Address(), "CONTAINERD_NAMESPACE=k8s.io")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.T.Fatalf("$ %s: %v", text, err)
	}
	text = deprecated.ReplaceAllString(string(out), "")
	s.see(text)
	return s.there.Replace(text)
}

// deprecated are warnings of ctr about the machine that runs the tests.
var deprecated = regexp.MustCompile(`(?m)^time=\S+ level=warning msg="DEPRECATION: .*\n`)

// see keeps the digests in a text, so that later commands can use them in their short form.
func (s *session) see(text string) { s.seen.WriteString(text + "\n") }
