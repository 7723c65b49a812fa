package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/measure"
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
}

// peakPeriod is how often the maximum RSS of a program is read. What it uses in the last period can be missed.
const peakPeriod = 5 * time.Millisecond

// runProgram runs a program of the bin directory until it ends. The memory is that of getrusage(2) only for a program that ends
// before its memory is read: getrusage can have that of this process at the start of the program.
func runProgram(ctx context.Context, name string, args ...string) (p program, _ error) {
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), name), args...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return p, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(peakPeriod)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			p.wall = time.Since(start)
			if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && p.peak == 0 {
				p.peak = float64(used.Maxrss << 10)
			}
			if err != nil {
				err = fmt.Errorf("%s %q: %w: %s", name, args, err, bytes.TrimSpace(errOut.Bytes()))
			}
			return p, err
		case <-tick.C:
			if peak, err := measure.PeakRSS(cmd.Process.Pid); err == nil { // it may have ended
				p.peak = max(p.peak, peak)
			}
		}
	}
}

// imagepin runs the imagepin command on a node.
func (s *side) imagepin(ctx context.Context, args ...string) (program, error) {
	return runProgram(ctx, "imagepin", append([]string{"--address", s.Address()}, args...)...)
}

// ctr runs ctr on a node.
func (s *side) ctr(ctx context.Context, args ...string) (program, error) {
	return runProgram(ctx, "ctr", append([]string{"--address", s.ContainerdAddress(), "--namespace", node.Namespace}, args...)...)
}
