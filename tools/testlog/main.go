// Command testlog prints what make test does while it runs: a line when a stage, a package of tests or a long command
// begins and ends, each failure at once and in one piece, and a summary at the end. Stages run at the same time, as
// processes of make. They report to the process that has started make.
//
//	testlog needs -stages 'A B' [-without 'B']             says what the machine lacks for the stages, and fails if it lacks anything
//	testlog run -stages 'A B' [-without 'B'] -- make ...   runs make, and prints what the stages report. More commands may
//	                                                       follow, each after --.
//	testlog test STAGE -- go test ...                      runs go test with -json, and reports its packages
//	testlog shell TARGET SHELL... -c COMMAND               is the shell of make in a run
//	testlog end STAGE                                      reports that a stage has succeeded
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	rc, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		rc = max(rc, 1)
	}
	os.Exit(rc)
}

var errUsage = errors.New("usage: testlog needs|run|test|shell|end ARGUMENTS, see go doc")

func command(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "needs", "run":
		f := flag.NewFlagSet(name, flag.ContinueOnError)
		planned := f.String("stages", "", "all stages")
		left := f.String("without", "", "stages that are left out")
		if err := f.Parse(args); err != nil {
			return 2, err
		}
		stages, leftOut := strings.Fields(*planned), strings.Fields(*left)
		if name == "run" {
			return runAll(os.Stdout, stages, leftOut, commands(f.Args()))
		}
		report, err := missing(needs, stages, leftOut)
		fmt.Print(report)
		return 0, err
	case "test":
		if len(args) < 3 || args[1] != "--" || !slices.Contains(args, "test") {
			return 2, errUsage
		}
		return runTests(os.Stdout, args[0], args[2:])
	case "shell":
		return runShell(args[0], args[1:])
	case "end":
		return 0, endStage(args[0])
	}
	return 2, errUsage
}

// commands splits arguments at each --.
func commands(args []string) [][]string {
	all := [][]string{nil}
	for _, a := range args {
		if a == "--" {
			all = append(all, nil)
			continue
		}
		all[len(all)-1] = append(all[len(all)-1], a)
	}
	return slices.DeleteFunc(all, func(c []string) bool { return len(c) == 0 })
}
