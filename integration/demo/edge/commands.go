package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/imagepin/imagepin/integration/docs/transcript"
)

// The directories that the commands show. They are below the root of the node.
const (
	bundlesDirectory = "/var/lib/imagepin/bundles"
	locksDirectory   = "/etc/imagepin/locks.d"
)

// prepareShell makes the shell run the commands in a directory of the node, with the binaries of this repository.
func (d *demo) prepareShell() error {
	d.shell.Dir = d.node.Path("work")
	for shown, real := range map[string]string{bundlesDirectory: d.node.Path("bundles"), locksDirectory: d.node.Path("locks.d")} {
		d.shell.Replace(shown, real)
	}
	for _, dir := range []string{"work", "bundles", "locks.d"} {
		if err := os.Mkdir(d.node.Path(dir), 0o755); err != nil {
			return err
		}
	}
	d.shell.Env = append(os.Environ(), "PATH="+d.node.Options().BinDir+":"+os.Getenv("PATH"), "CONTAINERD_ADDRESS="+d.node.Address())
	return nil
}

// show runs a command, and prints it with its output, in which digests are shortened. The exit code has to be code; another
// one than 0 is printed.
func (d *demo) show(ctx context.Context, code int, command string) error {
	run := command
	if code != 0 {
		run += "; echo $?"
	}
	out, err := d.shell.Must(ctx, run)
	if err != nil {
		return err
	}
	d.quote(run, d.shell.There(out))
	if code != 0 && !strings.HasSuffix(out, fmt.Sprintf("\n%d\n", code)) {
		return fmt.Errorf("%s: want exit code %d", command, code)
	}
	return nil
}

// quote prints a command and its output. Long lines stay as they are.
func (d *demo) quote(command, out string) {
	fmt.Fprintf(d.out, "   $ %s\n", command)
	for line := range strings.Lines(transcript.Shorten(out)) {
		fmt.Fprint(d.out, "   "+line)
	}
	fmt.Fprintln(d.out)
}
