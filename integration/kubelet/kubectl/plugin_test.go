package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// plugin runs the plugin.
type plugin struct {
	home string
	env  []string
}

// result is what a command has printed, and its exit code.
type result struct {
	out, err string
	code     int
}

// newPlugin returns a plugin that connects to registries through a proxy. All runs share a home directory, which has
// the cache of discovery.
func newPlugin(kubeconfig, proxy string) (*plugin, error) {
	home, err := os.MkdirTemp("", "kubectl-imagepin")
	if err != nil {
		return nil, err
	}
	return &plugin{home: home, env: []string{
		"HOME=" + home, "KUBECONFIG=" + kubeconfig, "HTTP_PROXY=" + proxy, "HTTPS_PROXY=" + proxy, "DOCKER_CONFIG=" + filepath.Join(home, "docker"),
	}}, nil
}

func (p *plugin) close() error { return os.RemoveAll(p.home) }

func (p *plugin) run(ctx context.Context, args ...string) (result, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), "kubectl-imagepin"), args...)
	cmd.Env = p.env
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = context.Cause(ctx)
	}
	if err != nil {
		return result{}, fmt.Errorf("kubectl imagepin %s: %w; run make kubectl-imagepin", strings.Join(args, " "), err)
	}
	return result{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}, nil
}

// in runs a command in a namespace.
func (p *plugin) in(t *testing.T, ns string, args ...string) result {
	t.Helper()
	r, err := p.run(testkit.Context(t), append(args, "--namespace="+ns)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kubectl imagepin %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	return r
}

// awaitAllowed runs a command until it is not forbidden. The API server learns of permissions by a watch.
func (p *plugin) awaitAllowed(t *testing.T, ns string, args ...string) result {
	t.Helper()
	var r result
	testkit.EventuallyIn(t, timeout, "the command is permitted", func(context.Context) (bool, error) {
		r = p.in(t, ns, args...)
		return !strings.Contains(r.err, "(Forbidden)"), nil
	})
	return r
}

// must runs a command in a namespace and returns what it prints. It fails the test if the exit code is not 0.
func (p *plugin) must(t *testing.T, ns string, args ...string) string {
	t.Helper()
	r := p.in(t, ns, args...)
	if r.code != 0 {
		t.Fatalf("exit code %d", r.code)
	}
	return r.out
}

// wantError fails the test unless a command failed with an error that has some words, and printed nothing else.
func (r result) wantError(t *testing.T, words ...string) {
	t.Helper()
	if r.code != 1 || r.out != "" {
		t.Errorf("exit code %d and output %q, want an error", r.code, r.out)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			t.Errorf("error %q does not have %q", r.err, w)
		}
	}
}

// wantTable fails the test unless the rows of a table have these cells, of which "*" is any. Rows are separated by lines
// and cells by blanks.
func wantTable(t *testing.T, got, want string) {
	t.Helper()
	rows := func(s string) (rows [][]string) {
		for line := range strings.Lines(strings.TrimSpace(s)) {
			rows = append(rows, strings.Fields(line))
		}
		return rows
	}
	g, w := rows(got), rows(want)
	matches := len(g) == len(w)
	for i := 0; matches && i < len(w); i++ {
		matches = len(g[i]) == len(w[i])
		for j := 0; matches && j < len(w[i]); j++ {
			matches = w[i][j] == "*" || w[i][j] == g[i][j]
		}
	}
	if !matches {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
