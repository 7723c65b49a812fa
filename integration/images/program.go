package images

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var (
	//go:embed programs/app/main.go
	appSource []byte
	//go:embed programs/pause/main.go
	pauseSource []byte
)

// goMod makes each program its own module, so that it builds outside of this source tree.
const goMod = "module program\n\ngo 1.26\n"

// Programs compiles the programs of test images once per source and Go version, and caches them in Dir. It is safe for
// concurrent use, also by several processes with the same directory.
type Programs struct {
	// Dir is the directory of compiled programs. Empty means imagepin/programs in the user's cache directory, or in the
	// temporary directory if the user has no cache directory.
	Dir string

	mu     sync.Mutex
	layers map[layerKey]v1.Layer // of compiled programs
}

// layerKey is what the layer of a program depends on.
type layerKey struct {
	path        string
	compression Compression
	format      Format
}

var defaultPrograms = &Programs{}

// App returns the static binary of the application, compiled for this machine's Linux architecture.
func (p *Programs) App(ctx context.Context) ([]byte, error) { return p.compile(ctx, "app", appSource) }

// Pause returns the static binary of the sandbox image's entrypoint.
func (p *Programs) Pause(ctx context.Context) ([]byte, error) {
	return p.compile(ctx, "pause", pauseSource)
}

// layer returns the layer with only a program. Almost all images have it, and to compress it takes longer than all else of an
// image, so it is compressed once.
func (p *Programs) layer(opts Options, path string, program []byte) (v1.Layer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := layerKey{path, opts.Compression, opts.Format}
	if l, ok := p.layers[key]; ok {
		return l, nil
	}
	l, err := layer(opts, Files{path: program})
	if err != nil {
		return nil, err
	}
	if p.layers == nil {
		p.layers = map[layerKey]v1.Layer{}
	}
	p.layers[key] = l
	return l, nil
}

func (p *Programs) compile(ctx context.Context, name string, source []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir := p.Dir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "imagepin", "programs")
	}
	sum := sha256.Sum256(append([]byte(runtime.Version()+"/"+runtime.GOARCH+"\n"+goMod), source...))
	binary := filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:8]))
	b, err := os.ReadFile(binary)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(dir, name+"-build-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := os.WriteFile(filepath.Join(work, "go.mod"), []byte(goMod), 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(work, "main.go"), source, 0o644); err != nil {
		return nil, err
	}
	built := filepath.Join(work, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", built, ".")
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the %s program: %w\n%s", name, err, out)
	}
	// A rename is atomic: other processes find the whole binary or none.
	if err := os.Rename(built, binary); err != nil {
		return nil, err
	}
	return os.ReadFile(binary)
}
