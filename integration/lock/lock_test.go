package lock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// stage is a registry and a directory.
type stage struct {
	*testing.T
	ctx context.Context
	*registry.Registry
	dir string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	r, err := registry.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &stage{t, testkit.Context(t), r, t.TempDir()}
}

// image pushes an index with the platforms of two machines. Another text results in another digest.
func (s *stage) image(tag, text string) v1.Hash {
	s.Helper()
	index, err := images.DataIndex(images.Options{Files: []images.Files{{"/text": []byte(text)}}}, "linux/amd64", "linux/arm64")
	if err != nil {
		s.Fatal(err)
	}
	d, err := s.Push(tag, index)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// write writes a file of the directory, in which REGISTRY is the host of the registry.
func (s *stage) write(name, text string) (path string) {
	s.Helper()
	path = filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "REGISTRY", s.Host())), 0o644); err != nil {
		s.Fatal(err)
	}
	return path
}

// run runs a program and returns its output and its exit code. Its home and docker's configuration are empty.
func (s *stage) run(dir, stdin, program string, args ...string) (stdout, stderr string, code int) {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, program, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+filepath.Join(s.dir, "docker"))
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Fatalf("%s: %v", program, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// lock runs imagepin lock.
func (s *stage) lock(stdin string, args ...string) (stdout, stderr string, code int) {
	s.Helper()
	bin, err := filepath.Abs("../../bin/imagepin")
	if err != nil {
		s.Fatal(err)
	}
	return s.run(s.dir, stdin, bin, append([]string{"lock"}, args...)...)
}

// mustLock is lock, and fails if the command does.
func (s *stage) mustLock(stdin string, args ...string) (stdout string) {
	s.Helper()
	stdout, stderr, code := s.lock(stdin, args...)
	if code != 0 {
		s.Fatalf("imagepin lock %v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

// tool runs a tool of the module tools.
func (s *stage) tool(name string, args ...string) (stdout string) {
	s.Helper()
	stdout, stderr, code := s.run("tools", "", "go", append([]string{"tool", name}, args...)...)
	if code != 0 {
		s.Fatalf("%s %v: exit code %d: %s", name, args, code, stderr)
	}
	return stdout
}

// imagesIn returns the values of all keys image of a text in YAML, sorted.
func imagesIn(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if _, value, ok := strings.Cut(line, "image: "); ok {
			all = append(all, strings.TrimSpace(value))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

const manifests = `apiVersion: apps/v1
kind: Deployment
metadata: {name: cart}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}}
    spec:
      initContainers:
      - name: setup
        image: REGISTRY/shop/setup
      containers:
      - name: cart
        image: REGISTRY/shop/cart:v7
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec:
  schedule: "0 0 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: report
            image: REGISTRY/shop/setup:latest
`

// TestKbld checks that kbld replaces the images in manifests by the digests of a lock, without the registry, and that
// imagepin reads a lock that kbld has written.
func TestKbld(t *testing.T) {
	s := newStage(t)
	cart, setup := s.image("shop/cart:v7", "cart"), s.image("shop/setup:latest", "setup")
	path := s.write("manifests/all.yaml", manifests)
	made := filepath.Join(s.dir, "lock.yml")
	s.mustLock("", "-f", filepath.Dir(path), "-o", made)

	theirs := filepath.Join(s.dir, "kbld.yml")
	s.tool("kbld", "-f", path, "--imgpkg-lock-output", theirs)
	if got := s.mustLock("", "-f", path, "--check", theirs); got != theirs+" is up to date: 3 references\n" {
		t.Errorf("with the lock of kbld: got %q", got)
	}

	s.Down()
	want := []string{s.Ref("shop/cart@" + cart.String()), s.Ref("shop/setup@" + setup.String())}
	if got := imagesIn(s.tool("kbld", "-f", path, "-f", made)); !slices.Equal(got, want) {
		t.Errorf("kbld: got images %q, want %q", got, want)
	}
}

// TestKustomize checks that the output of kustomize can be locked, and that a tag that moves is found.
func TestKustomize(t *testing.T) {
	s := newStage(t)
	old, setup := s.image("shop/cart:v8", "cart"), s.image("shop/setup:latest", "setup")
	s.write("base/all.yaml", manifests)
	s.write("base/kustomization.yaml", "resources: [all.yaml]\nimages:\n- {name: REGISTRY/shop/cart, newTag: v8}\n")
	rendered := s.tool("kustomize", "build", filepath.Join(s.dir, "base"))
	made := filepath.Join(s.dir, "lock.yml")
	s.mustLock(rendered, "-f", "-", "-o", made)
	text, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := imagesIn(string(text)), []string{s.Ref("shop/cart@" + old.String()), s.Ref("shop/setup@" + setup.String())}; !slices.Equal(got, want) {
		t.Errorf("got images %q, want %q", got, want)
	}
	if again := s.mustLock(rendered, "-f", "-"); again != string(text) {
		t.Errorf("got\n%s\nand then\n%s", text, again)
	}

	moved := s.image("shop/cart:v8", "cart 2")
	stdout, stderr, code := s.lock(rendered, "-f", "-", "--check", made, "--no-trunc")
	if want := fmt.Sprintf("%s  %s  %s\n", s.Ref("shop/cart:v8"), old, moved); code != 10 || !strings.HasSuffix(stdout, want) {
		t.Errorf("exit code %d, got %q and %q, want 10 and %q", code, stdout, stderr, want)
	}
	s.mustLock("", "--update", s.Ref("shop/cart:v8"), "-o", made)
	s.mustLock(rendered, "-f", "-", "--check", made)
}

// TestRequests counts the requests for one image.
func TestRequests(t *testing.T) {
	s := newStage(t)
	d := s.image("shop/cart:v7", "cart")
	list := s.write("list.txt", "REGISTRY/shop/cart:v7\n")
	s.mustLock("", "-f", list)
	var got []string
	for _, r := range s.Requests() {
		got = append(got, r.Method+" "+r.Path)
	}
	want := []string{"HEAD /v2/shop/cart/manifests/v7", "GET /v2/shop/cart/manifests/" + d.String()}
	if !slices.Equal(got, want) {
		t.Errorf("got requests %q, want %q", got, want)
	}
}
