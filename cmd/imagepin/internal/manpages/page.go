// Package manpages writes the manual pages of a command. They have the text of its --help.
package manpages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// pages returns the text of a page for root and for each visible command below it, by the name of the page: imagepin,
// imagepin-pin-ls, ….
func pages(root *cli.Command, date string) map[string]string {
	out := make(map[string]string)
	var walk func(path []*cli.Command)
	walk = func(path []*cli.Command) {
		out[pageName(path)] = page(path, root.Version, date)
		for _, c := range commands(path[len(path)-1]) {
			walk(append(path[:len(path):len(path)], c))
		}
	}
	walk([]*cli.Command{root})
	return out
}

func commands(c *cli.Command) []*cli.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands), func(sub *cli.Command) bool { return sub.Hidden || sub.Name == "help" })
}

func pageName(path []*cli.Command) string { return joinNames(path, "-") }

func joinNames(path []*cli.Command, sep string) string {
	names := make([]string, len(path))
	for i, c := range path {
		names[i] = c.Name
	}
	return strings.Join(names, sep)
}

// page returns the page for the last command in path.
func page(path []*cli.Command, version, date string) string {
	cmd, subs := path[len(path)-1], commands(path[len(path)-1])
	b := new(roff)
	b.macro("TH", strings.ToUpper(pageName(path)), "1", date, "imagepin "+version, "")

	b.macro("SH", "NAME")
	b.text(pageName(path) + " - " + lowerFirst(cmd.Usage))

	b.macro("SH", "SYNOPSIS")
	synopsis := joinNames(path, " ")
	if len(cmd.Flags) > 0 {
		synopsis += " [options]"
	}
	if len(subs) > 0 {
		synopsis += " command"
	}
	if cmd.ArgsUsage != "" {
		synopsis += " " + cmd.ArgsUsage
	}
	b.text(synopsis)

	if cmd.Description != "" {
		b.macro("SH", "DESCRIPTION")
		b.preformatted(cmd.Description)
	}
	if len(subs) > 0 {
		b.macro("SH", "COMMANDS")
		for _, sub := range subs {
			b.macro("TP")
			b.bold(pageName(append(path[:len(path):len(path)], sub)) + "(1)")
			b.text(sub.Usage)
		}
	}
	if len(cmd.Flags) > 0 {
		b.macro("SH", "OPTIONS")
		for _, f := range cmd.Flags {
			b.flag(f)
		}
	}
	if len(path) > 1 {
		b.macro("SH", "SEE ALSO")
		b.text(pageName(path[:len(path)-1]) + "(1)")
	}
	return b.String()
}

func lowerFirst(s string) string {
	if s == "" || len(s) > 1 && s[1] >= 'A' && s[1] <= 'Z' {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// roff is a page in roff format.
type roff struct{ strings.Builder }

// macro writes a request with its arguments.
func (r *roff) macro(name string, args ...string) {
	fmt.Fprintf(r, ".%s", name)
	for _, a := range args {
		fmt.Fprintf(r, " \"%s\"", strings.ReplaceAll(escape(a), `"`, `\(dq`))
	}
	r.WriteByte('\n')
}

// text writes one line of text.
func (r *roff) text(s string) { r.WriteString(protect(escape(s)) + "\n") }

func (r *roff) bold(s string) { r.WriteString(`\fB` + escape(s) + `\fR` + "\n") }

// preformatted writes text without changing its lines.
func (r *roff) preformatted(s string) {
	r.macro("nf")
	for line := range strings.Lines(s) {
		r.text(strings.TrimSuffix(line, "\n"))
	}
	r.macro("fi")
}

// flag writes a flag as in --help: its names and argument, and then its usage.
func (r *roff) flag(f cli.Flag) {
	names, usage, ok := strings.Cut(f.String(), "\t")
	if !ok || strings.TrimSpace(names) == "" {
		return
	}
	r.macro("TP")
	r.bold(strings.TrimSpace(names))
	r.text(strings.TrimSpace(usage))
}

var escaper = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "…", `\&...`)

func escape(s string) string { return escaper.Replace(s) }

// protect prevents that a line is read as a request.
func protect(s string) string {
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, `\(aq`) {
		return `\&` + s
	}
	return s
}
