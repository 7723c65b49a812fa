// Command scale measures ImagePins at scale, against one API server and one etcd on this machine.
//
// Thousands of agents claim ImagePins. Each agent is what a node has of imagepin for that: pkg/imagepin/pin/cluster over
// pkg/imagepin/pin/cluster/kube, with the credential of its own node, its own connection, and its own pod. Meanwhile, other nodes
// renew their leases. Then the start of a pod is measured with and without ImagePins, on a containerd with imagepin.
//
// It prints one table. It checks that each ImagePin has one winner and that all agents get the digest of the winner, and
// the exit code is 0 only then. Budgets do not change the exit code. When it ends, also by Ctrl-C, it removes everything.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/script"
)

// timeout ends a benchmark that hangs.
const timeout = time.Hour

// tableName is the name of the table in a document, see [measure.Paste].
const tableName = "cluster table"

func main() {
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil && o.doc != "":
		err = measure.Paste(o.doc, tableName, o.out)
	case err == nil && os.Geteuid() != 0:
		err = errors.New("containerd needs root")
	case err == nil:
		os.Exit(cluster.InNamespace(func() int {
			err := script.Run(timeout, func(ctx context.Context, out io.Writer) error { return run(ctx, out, o) })
			if err != nil {
				fmt.Fprintln(os.Stderr, "scale:", err)
				return 1
			}
			return 0
		}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// options are the options of the command line.
type options struct {
	sizes
	out, doc string
}

// sizes are the sizes of the benchmark.
type sizes struct {
	agents     int
	heartbeats int // nodes that renew a lease
	stored     int // ImagePins that are in etcd
	starts     int // of pods, for each case
	// connecting adds the scenario in which all agents open their connections at one instant.
	connecting bool

	period time.Duration // of the heartbeats
	alone  time.Duration // how long the heartbeats are measured alone
	spread time.Duration // in which all agents claim one ImagePin
	minute time.Duration // in which groups of agents claim one ImagePin each
}

var (
	fullSizes = sizes{
		agents: 10_000, heartbeats: 1_000, stored: 45_000, starts: 20,
		period: 10 * time.Second, alone: 30 * time.Second, spread: 30 * time.Second, minute: time.Minute,
	}
	quickSizes = sizes{
		agents: 40, heartbeats: 20, stored: 200, starts: 2,
		period: 200 * time.Millisecond, alone: time.Second, spread: time.Second, minute: time.Second,
	}
)

func parse(args []string) (options, error) {
	o := options{sizes: fullSizes}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.IntVar(&o.agents, "agents", o.agents, "`number` of agents that claim ImagePins, at least 10")
	flags.IntVar(&o.heartbeats, "heartbeats", o.heartbeats, "`number` of nodes that renew a lease every 10 seconds")
	flags.IntVar(&o.stored, "stored", o.stored, "`number` of ImagePins that are in etcd before the agents start")
	flags.IntVar(&o.starts, "n", o.starts, "`number` of pods that are started in each case")
	connecting := flags.Bool("connecting", false, "also claim at one instant without connections: measures the TLS handshakes on this machine")
	quick := flags.Bool("quick", false, "small sizes: a test of the benchmark, not of speed")
	flags.StringVar(&o.out, "out", "", "`file` for the table")
	flags.StringVar(&o.doc, "doc", "", "measure nothing: write the table of the -out file into the `file`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		o.sizes = quickSizes
	}
	o.connecting = *connecting
	if flags.NArg() > 0 || o.agents < perPin || o.heartbeats < 1 || o.stored < 1 || o.starts < 1 || o.doc != "" && o.out == "" {
		return o, errors.New("invalid arguments; see -help")
	}
	return o, nil
}

// run measures everything and prints the table. It also prints the table if a check has failed.
func run(ctx context.Context, out io.Writer, o options) error {
	b := &bench{sizes: o.sizes, out: out}
	failed, err := b.measure(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if err := b.results.print(&table); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s", table.Bytes())
	if o.out != "" && failed == nil {
		return os.WriteFile(o.out, table.Bytes(), 0o644)
	}
	return failed
}
