package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// neighbour is a process beside the node that appends to a file and syncs it every ten milliseconds, as etcd does, and may have written
// much that is not synced. It is a process of its own because the benchmark's has the registry: goroutines wait for each other.
type neighbour struct {
	dir    string
	cmd    *exec.Cmd
	stop   io.Closer
	output io.Reader
}

// neighbourDir is the environment variable that makes this program a neighbour. It has the directory to write to.
const neighbourDir = "IMAGEPIN_BENCH_NEIGHBOUR"

func newNeighbour(ctx context.Context, parent string, dirty int64) (_ *neighbour, err error) {
	dir, err := os.MkdirTemp(parent, "imagepin-neighbour-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := writeDirty(filepath.Join(dir, "data"), dirty); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := &neighbour{dir: dir, cmd: exec.CommandContext(ctx, program)}
	n.cmd.Env = append(os.Environ(), neighbourDir+"="+dir)
	n.cmd.Stderr = os.Stderr
	if n.stop, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if n.output, err = n.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fscanln(n.output); err != nil { // an empty line says that it has begun
		return nil, errors.Join(fmt.Errorf("the neighbour did not begin: %w", err), n.stop.Close(), n.cmd.Wait())
	}
	return n, nil
}

func writeDirty(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for ; size > 0 && err == nil; size -= int64(len(block)) {
		_, err = f.Write(block)
	}
	return errors.Join(err, f.Close())
}

// end ends the neighbour, and returns the 99th percentile of the times of a sync.
func (n *neighbour) end() (time.Duration, error) {
	err := n.stop.Close()
	var took []time.Duration
	lines := bufio.NewScanner(n.output)
	for lines.Scan() {
		d, perr := time.ParseDuration(lines.Text())
		took, err = append(took, d), errors.Join(err, perr)
	}
	if err = errors.Join(err, lines.Err(), n.cmd.Wait(), os.RemoveAll(n.dir)); err != nil {
		return 0, fmt.Errorf("neighbour: %w", err)
	}
	if len(took) == 0 {
		return 0, errors.New("the neighbour has synced nothing")
	}
	slices.Sort(took)
	return took[int(math.Ceil(0.99*float64(len(took))))-1], nil
}

// isNeighbour runs the process of a neighbour, if this is one, until its standard input ends. It prints how long each sync has taken.
func isNeighbour() bool {
	dir := os.Getenv(neighbourDir)
	if dir == "" {
		return false
	}
	if err := syncUntilEnd(dir); err != nil {
		fmt.Fprintln(os.Stderr, "neighbour:", err)
		os.Exit(1)
	}
	return true
}

func syncUntilEnd(dir string) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	fmt.Println()
	var took []time.Duration
	record := make([]byte, 2<<10)
	for {
		start := time.Now()
		if _, err := log.Write(record); err != nil {
			return err
		}
		if err := syscall.Fdatasync(int(log.Fd())); err != nil {
			return err
		}
		took = append(took, time.Since(start))
		select {
		case err := <-ended:
			for _, d := range took {
				fmt.Println(d)
			}
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}
