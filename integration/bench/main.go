// Command bench compares imagepin with stock containerd of the same version. Both run at the same time, on separate
// roots, with the same configuration and one registry. They do the same work in turns, and the first one changes with
// each repetition.
//
// It prints a table. A ratio is imagepin's time (or memory, or count) divided by stock's in the same repetition. The
// table has the median of the ratios, with minimum and maximum. Budgets apply to the median. A second table has where the
// time of large cold pulls goes, and the floor that follows from it. The exit code is 0 if everything could be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/integration/measure"
)

func main() {
	if isNeighbour() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs the bench with the given arguments.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	run := flags.String("run", "", "measure only rows whose name matches the `regexp`")
	n := flags.Int("n", 5, "number of `repetitions`")
	quick := flags.Bool("quick", false, "small sizes and one repetition: a test of the benchmark, not of speed")
	out := flags.String("out", "", "`directory` for the tables, the raw numbers and the plots")
	profile := flags.String("cpuprofile", "", "`directory` for profiles of imagepin: the heap after each scenario, and CPU while it repeats the scenario")
	doc := flags.String("doc", "", "measure nothing: draw the charts of the -out directory again, and write its tables into the `file`")
	list := flags.Bool("list", false, "measure nothing: list the rows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *n < 1 || *doc != "" && *out == "" {
		return errors.New("invalid arguments; see -help")
	}
	if *doc != "" {
		return paste(*doc, *out)
	}
	o := options{n: *n, sizes: fullSizes, profile: *profile, profileFor: 10 * time.Second}
	if *quick {
		o.n, o.sizes, o.profileFor = 1, quickSizes, time.Second
	}
	if *run != "" {
		var err error
		if o.run, err = regexp.Compile(*run); err != nil {
			return err
		}
	}
	all := scenarios(o.sizes)
	if *list {
		for _, s := range all {
			for _, r := range s.rows {
				fmt.Fprintln(stdout, r.name)
			}
		}
		return nil
	}
	// containerd's packages that write roots log information about the file system.
	if err := log.SetLevel("error"); err != nil {
		return err
	}
	b := &bench{options: o, log: stderr}
	start := time.Now()
	if err := b.measure(ctx, all); err != nil {
		return err
	}
	b.say("done in %s", time.Since(start).Round(time.Second))
	about, err := measure.Machine()
	if err != nil {
		return err
	}
	about += fmt.Sprintf("; containerd %s; %d repetitions", strings.Join(b.versions, " and "), b.n)
	if *out != "" {
		if err := b.write(*out, about); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s\n\n", about)
	if err := table(stdout, b.results); err != nil || len(b.shares) == 0 {
		return err
	}
	fmt.Fprintln(stdout)
	return sharesTable(stdout, b.shares, runtime.NumCPU())
}

// scenarios returns all scenarios, grouped by fleet.
func scenarios(z sizes) []scenario {
	fleets := slices.Concat(bundles(z), []scenario{lockRefs(z)}, lockedNodes(z))
	for i := range fleets {
		fleets[i].apart = true
	}
	all := slices.Concat(coldPulls(z), durablePulls(z), warmPulls(z), seconds(), manyPulls(z), runtimeCalls(z), growth(z), lists(z), serves(z), fleets, rushes(z), []scenario{churn(z)})
	// The daemons of a fleet are started once. The leak check must be the last scenario of its fleet.
	var order []fleet
	for _, s := range all {
		if !slices.Contains(order, s.fleet) {
			order = append(order, s.fleet)
		}
	}
	slices.SortStableFunc(all, func(a, b scenario) int { return slices.Index(order, a.fleet) - slices.Index(order, b.fleet) })
	return all
}
