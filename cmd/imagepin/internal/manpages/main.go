// Command manpages writes one manual page for each command of imagepin, generated from its --help.
//
//	manpages [-date YYYY-MM-DD] DIR
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/command"
)

func main() {
	date := flag.String("date", "", "the date on the pages")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: manpages [-date YYYY-MM-DD] DIR")
		os.Exit(2)
	}
	if err := write(flag.Arg(0), *date); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func write(dir, date string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range pages(command.Root(), date) {
		if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
