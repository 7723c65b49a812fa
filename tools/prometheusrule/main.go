// Command prometheusrule writes a rule file of Prometheus as a PrometheusRule of the Prometheus operator, whose spec has
// the format of rule files.
//
//	go run ./prometheusrule [-check] NAME RULES OBJECT
//
// NAME is the name of the object. With -check nothing is written, and the exit code is 1 if the file OBJECT is out of date.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "write nothing, fail if the object is out of date")
	flag.Parse()
	if flag.NArg() != 3 {
		fmt.Fprintln(os.Stderr, "usage: prometheusrule [-check] NAME RULES OBJECT")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), flag.Arg(2), *check); err != nil {
		fmt.Fprintln(os.Stderr, "prometheusrule:", err)
		os.Exit(1)
	}
}

func run(name, rules, object string, check bool) error {
	text, err := os.ReadFile(rules)
	if err != nil {
		return err
	}
	generated := wrap(name, filepath.Base(rules), text)
	if !check {
		return os.WriteFile(object, generated, 0o644)
	}
	current, err := os.ReadFile(object)
	if err == nil && !bytes.Equal(current, generated) {
		err = errors.New("it is out of date: run make generate")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}
	return nil
}

// wrap returns the object. It indents the lines of the rules, so that their comments stay.
func wrap(name, source string, rules []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Generated from %s by "make generate".
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: %s
spec:
`, source, name)
	for line := range bytes.Lines(rules) {
		if len(bytes.TrimSpace(line)) > 0 {
			b.WriteString("  ")
		}
		b.Write(line)
	}
	return b.Bytes()
}
