package docs

import (
	"os"
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
	transcript.Shell
	subscription
}

// run runs the items of a session and passes each output to check.
func run(t *testing.T, items []transcript.Item, check func(transcript.Item, string) error) {
	s := newSession(t, items[0].Text)
	if err := s.Play(items, s.command, s.step, check); err != nil {
		t.Fatal(err)
	}
}

func newSession(t *testing.T, name string) *session {
	t.Helper()
	opts, ok := sessions[name]
	if !ok {
		t.Fatalf("there is no session %q", name)
	}
	opts.NoPods, opts.LogLevel = name != "running pods", "info"
	opts.Extra = withDropDirectories(opts.Extra)
	metrics := testkit.Address(t)
	opts.Extra = strings.ReplaceAll(opts.Extra, metricsAddress, metrics)
	s := &session{Rig: testkit.NewRig(t, opts)}
	if err := s.WriteHosts(exampleHost, node.Mirror(s.Reg.URL())); err != nil {
		t.Fatal(err)
	}
	s.Replace("/run/containerd/containerd.sock", s.ContainerdAddress())
	s.Replace("/etc/imagepin/config.toml", s.ServeConfig())
	s.Replace("/etc/imagepin/locks.d", s.Path("locks.d"))
	s.Replace("/var/lib/imagepin/bundles", s.Path("bundles"))
	s.Replace("/var/lib/containerd", s.Path("containerd"))
	s.Replace(metricsAddress, metrics)
	if opts.Mode == node.Serve {
		s.Replace("/run/imagepin/imagepin.sock", s.Address())
	}
	bin, err := filepath.Abs(s.Options().BinDir)
	if err != nil {
		t.Fatal(err)
	}
	s.Dir = t.TempDir()
	s.Replace("/srv/shop", s.Dir)
	if err := os.Symlink(s.Path(s.Options().HostsDirs[0]), filepath.Join(s.Dir, "certs.d")); err != nil {
		t.Fatal(err)
	}
	s.Env = append(os.Environ(), "PATH="+bin+":/usr/bin:/bin:/usr/sbin:/sbin", "CONTAINERD_ADDRESS="+s.Address(), "CONTAINERD_NAMESPACE=k8s.io")
	return s
}

// withDropDirectories adds drop directories below the node's root to a configuration.
func withDropDirectories(config string) string {
	const section = "[plugins.\"io.containerd.imagepin.v1.images\"]\n"
	if !strings.Contains(config, section) {
		config = section + config
	}
	return strings.Replace(config, section, section+"locks_directory = \"{root}/locks.d\"\nbundles_directory = \"{root}/bundles\"\n", 1)
}

// command runs a command in a shell, and returns what it prints.
func (s *session) command(text string) (string, error) {
	out, err := s.Run(s.Ctx, text)
	return progress.ReplaceAllString(deprecated.ReplaceAllString(out, ""), ""), err
}

// progress are the lines that imagepin apply and rollback print while they run. They differ in each run.
var progress = regexp.MustCompile(`(?m)^(verifying|importing|preparing|switching)(: .+ of .+)?\n`)

// deprecated are warnings of ctr about the machine that runs the tests.
var deprecated = regexp.MustCompile(`(?m)^time=\S+ level=warning msg="DEPRECATION: .*\n`)
