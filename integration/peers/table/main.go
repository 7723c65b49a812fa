// Command table updates or checks the table in RELEASES.md of the tests of peers. Without -results, it checks only the versions and
// the differences in the table: the numbers of tests are those of one machine.
//
//	table [-results FILE] ROOT
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/imagepin/imagepin/integration/peers/results"
)

func main() {
	file := flag.String("results", "", "`file` with the outcomes that TestPeers wrote")
	flag.Parse()
	if err := run(flag.Arg(0), *file); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(root, file string) error {
	suites, err := suites(root)
	if err != nil {
		return err
	}
	path := filepath.Join(root, "RELEASES.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if file == "" {
		accepted, err := list(root, "differences.txt")
		if err != nil {
			return err
		}
		if err := results.CheckRows(string(doc), suites, accepted); err != nil {
			return fmt.Errorf("RELEASES.md: %w: run make test-peers, then make peers-table", err)
		}
		return nil
	}
	failing, err := list(root, "stock.txt")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	runs, err := results.Parse(text)
	if err != nil {
		return err
	}
	next, err := results.Insert(string(doc), results.Table(suites, runs, failing))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(next), 0o644)
}

func list(root, name string) ([]results.Entry, error) {
	text, err := os.ReadFile(filepath.Join(root, "integration", "peers", name))
	if err != nil {
		return nil, err
	}
	entries, err := results.ParseList(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return entries, nil
}

var (
	containerd = regexp.MustCompile(`(?m)^\s*github\.com/containerd/containerd/v2 v(\S+)`)
	criTools   = regexp.MustCompile(`(?m)^\s*sigs\.k8s\.io/cri-tools v(\S+)`)
)

// suites returns the rows of the table, with the versions in the go.mod of the tests.
func suites(root string) ([]results.Suite, error) {
	text, err := os.ReadFile(filepath.Join(root, "integration", "peers", "binaries", "go.mod"))
	if err != nil {
		return nil, err
	}
	ctd, tools := containerd.FindSubmatch(text), criTools.FindSubmatch(text)
	if ctd == nil || tools == nil {
		return nil, fmt.Errorf("integration/peers/binaries requires no containerd or no cri-tools")
	}
	return []results.Suite{
		{Name: "cri", Title: fmt.Sprintf("containerd %s: CRI", ctd[1])},
		{Name: "client", Title: fmt.Sprintf("containerd %s: client, about images", ctd[1])},
		{Name: "critest", Title: fmt.Sprintf("critest %s", tools[1])},
	}, nil
}
