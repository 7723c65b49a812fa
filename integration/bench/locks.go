package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// locked is an image of a lock: a reference with a tag, and its digest.
type locked struct {
	ref    string
	digest digest.Digest
}

// writeLock writes a lock to a file.
func writeLock(path string, images []locked) error {
	all := make([]lock.Image, 0, len(images))
	for _, i := range images {
		ref, err := imagepin.ParseReference(i.ref)
		if err != nil {
			return err
		}
		canonical, err := reference.WithDigest(reference.TrimNamed(ref), i.digest)
		if err != nil {
			return err
		}
		all = append(all, lock.Image{ID: i.ref, Ref: canonical})
	}
	l, err := lock.New(all)
	if err != nil {
		return err
	}
	text, err := l.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// program is a run of a program.
type program struct {
	wall time.Duration
	peak float64 // maximum RSS in bytes
	out  string  // standard output
}

// runProgram runs a program of the bin directory until it ends.
func runProgram(ctx context.Context, name string, args ...string) (program, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), name), args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	start := time.Now()
	err := cmd.Run()
	p := program{wall: time.Since(start), out: out.String()}
	if err != nil {
		return p, fmt.Errorf("%s %q: %w: %s", name, args, err, bytes.TrimSpace(errOut.Bytes()))
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return p, errors.New("the system does not report the memory of a process")
	}
	p.peak = float64(usage.Maxrss) * 1024
	return p, nil
}

// imagepin runs the imagepin command on a node.
func (s *side) imagepin(ctx context.Context, args ...string) (program, error) {
	return runProgram(ctx, "imagepin", append([]string{"--address", s.Address()}, args...)...)
}

// ctr runs ctr on a node.
func (s *side) ctr(ctx context.Context, args ...string) (program, error) {
	return runProgram(ctx, "ctr", append([]string{"--address", s.ContainerdAddress(), "--namespace", node.Namespace}, args...)...)
}
