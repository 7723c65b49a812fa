package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// drifts is the exit code of kubectl imagepin drift if there is drift.
const drifts = 10

// builds waits until the revision runs on all nodes, and prints what its containers print. The versions are those that the
// first, second and third node have to run.
func (d *demo) builds(ctx context.Context, of string, versions ...string) error {
	run, err := d.running(ctx, of, len(versions))
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\n   POD\tNODE\tCONTAINER OUTPUT")
	var errs []error
	for i, m := range d.nodes.Members {
		at := slices.IndexFunc(run, func(p core.Pod) bool { return p.Spec.NodeName == m.Name })
		if at < 0 {
			return fmt.Errorf("%s runs no pod of the revision", m.Name)
		}
		line, err := d.output(ctx, i, &run[at])
		if err != nil {
			return err
		}
		if want := (images.Options{Version: versions[i]}).Line(0); line != want {
			errs = append(errs, fmt.Errorf("the pod on %s printed %q, want %q", m.Name, line, want))
		}
		// The rest of the line has the same values, from the root filesystem.
		line, _, _ = strings.Cut(line, " rootfs=")
		fmt.Fprintf(w, "   %s\t%s\t%s\n", run[at].Name, m.Name, line)
	}
	fmt.Fprintln(w)
	_ = w.Flush() // if the output is closed, the demo's context has ended
	return errors.Join(errs...)
}

// output waits for the line that the pod on a node prints.
func (d *demo) output(ctx context.Context, member int, p *core.Pod) (string, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		line, err := d.nodes.Members[member].Kubelet.Log(p, "web", 0)
		if err != nil || line != "" {
			return line, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for the output of pod %s: %w", p.Name, context.Cause(ctx))
		}
	}
}

// drift prints the output of kubectl imagepin drift and its exit code, which has to be code.
func (d *demo) drift(ctx context.Context, code int) error {
	out, got, err := d.plugin(ctx, "drift")
	if err != nil {
		return err
	}
	d.quote("kubectl imagepin drift; echo $?", fmt.Sprintf("%s%d\n", out, got))
	if got != code {
		return fmt.Errorf("kubectl imagepin drift: got exit code %d, want %d", got, code)
	}
	return nil
}

// list prints the ImagePins.
func (d *demo) list(ctx context.Context) error {
	out, code, err := d.plugin(ctx, "get")
	if err != nil {
		return err
	}
	d.quote("kubectl imagepin get", out)
	if code != 0 {
		return fmt.Errorf("kubectl imagepin get: exit code %d", code)
	}
	return nil
}

// quote prints a command and its output. Long lines stay as they are.
func (d *demo) quote(command, out string) {
	fmt.Fprintf(d.out, "   $ %s\n", command)
	for line := range strings.Lines(out) {
		fmt.Fprint(d.out, "   "+line)
	}
	fmt.Fprintln(d.out)
}

// plugin runs the kubectl plugin with the permissions of an administrator.
func (d *demo) plugin(ctx context.Context, command string) (out string, code int, _ error) {
	cmd := exec.CommandContext(ctx, filepath.Join(node.BinDir(), "kubectl-imagepin"), command, "--kubeconfig", d.kube.Kubeconfig())
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return string(b), cmd.ProcessState.ExitCode(), nil
}

// installImagePins creates the objects that kubectl imagepin install prints.
func (d *demo) installImagePins(ctx context.Context) error {
	out, code, err := d.plugin(ctx, "install")
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("kubectl imagepin install: exit code %d: %s", code, out)
	}
	if err := d.kube.Install(ctx, bytes.NewBufferString(out)); err != nil {
		return err
	}
	d.quote("kubectl imagepin install | kubectl apply -f -", "")
	return d.kube.AwaitImagePins(ctx)
}
