// Command bench measures imagepin beside stock containerd of the same version: both run at the same time, on roots of their
// own, with the same configuration and one registry, and do the same work in turns; who begins changes with every repetition.
//
// It prints one table. A ratio is imagepin's time (or memory, or count) by stock's in the same repetition; the table has the
// median of the ratios with the least and the greatest. Budgets are judged by the medians. The exit code says only whether
// everything could be measured.
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
	"slices"
	"syscall"
	"time"

	"github.com/containerd/log"
)

func main() {
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

// command runs the bench as the command line says.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	run := flags.String("run", "", "measure only rows whose name matches this `regexp`")
	n := flags.Int("n", 10, "`repetitions`; restarts take half of them")
	quick := flags.Bool("quick", false, "small sizes and one repetition: to see that it works, not how fast")
	out := flags.String("out", "", "`directory` for the table, the raw numbers and the plots")
	profile := flags.String("cpuprofile", "", "`directory` for profiles of imagepin: the heap after each scenario, and CPU while it does its work again")
	doc := flags.String("doc", "", "measure nothing: put the table of the -out directory into this `file`")
	list := flags.Bool("list", false, "measure nothing: list the rows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *n < 1 || *doc != "" && *out == "" {
		return errors.New("wrong arguments; see -help")
	}
	if *doc != "" {
		return pasteTable(*doc, *out)
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
	// The packages of containerd that write roots log what they find of the file system.
	if err := log.SetLevel("error"); err != nil {
		return err
	}
	b := &bench{options: o, log: stderr}
	start := time.Now()
	if err := b.measure(ctx, all); err != nil {
		return err
	}
	b.say("done in %s", time.Since(start).Round(time.Second))
	about, err := machine(b.versions, b.n)
	if err != nil {
		return err
	}
	if *out != "" {
		if err := b.write(*out, about); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s\n\n", about)
	return table(stdout, b.results)
}

// scenarios are all of them, those of one fleet together.
func scenarios(z sizes) []scenario {
	all := slices.Concat(coldPulls(z), warmPulls(z), seconds(), manyPulls(z), runtimeCalls(z), growth(z), []scenario{churn(z)})
	// The daemons of a fleet are started once; those that the leak check has used are of no use for others.
	var fleets []fleet
	for _, s := range all {
		if !slices.Contains(fleets, s.fleet) {
			fleets = append(fleets, s.fleet)
		}
	}
	slices.SortStableFunc(all, func(a, b scenario) int { return slices.Index(fleets, a.fleet) - slices.Index(fleets, b.fleet) })
	return all
}
