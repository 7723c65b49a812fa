package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/urfave/cli/v3"
)

// completeName is the name of the command that the completion scripts run.
const completeName = "__complete"

// filesCandidate tells the script to complete names of files.
const filesCandidate = ":files"

// candidate is a word that completes the current one, with an optional description.
type candidate struct{ value, help string }

// completeCommand prints one candidate in each line for the last of its arguments. The arguments are the words of the
// command line after the name of the program, up to the cursor.
func (a *app) completeCommand() *cli.Command {
	return &cli.Command{Name: completeName, Hidden: true, SkipFlagParsing: true, Action: a.complete}
}

func (a *app) complete(ctx context.Context, cmd *cli.Command) error {
	words := cmd.Args().Slice()
	if len(words) == 0 {
		return nil
	}
	l := parseLine(cmd.Root(), words)
	for _, name := range []string{"address", "namespace"} {
		if _, given := l.values[name]; !given {
			l.values[name] = cmd.String(name)
		}
	}
	for _, c := range l.candidates(ctx) {
		if !completes(c.value, l.current) {
			continue
		}
		text := l.prefix + c.value
		if c.help != "" {
			text += "\t" + c.help
		}
		if _, err := fmt.Fprintln(a.Out, text); err != nil {
			return err
		}
	}
	return nil
}

// completes reports whether a candidate begins with the current word, and whether a shell can insert it without quotes.
func completes(value, current string) bool {
	if value == filesCandidate {
		return true
	}
	special := strings.ContainsFunc(value, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune("`\"'$\\;&|<>(){}*?!#~", r)
	})
	return !special && strings.HasPrefix(value, current)
}

// commandLine is an incomplete command line.
type commandLine struct {
	path     []*cli.Command    // from the root to the command
	args     []string          // complete arguments of the command
	values   map[string]string // of flags, by their first name
	flag     cli.Flag          // whose value is the current word; nil if it is no value
	prefix   string            // of the current word: "--output=" if it has the value of a flag
	current  string            // word, without prefix
	argsOnly bool              // "--" ends the flags
}

// parseLine parses words, the last of which is the current one.
func parseLine(root *cli.Command, words []string) *commandLine {
	l := &commandLine{path: []*cli.Command{root}, values: make(map[string]string)}
	for _, word := range words[:len(words)-1] {
		l.add(word)
	}
	l.current = words[len(words)-1]
	name, value, ok := strings.Cut(l.current, "=")
	if f := l.find(name); ok && l.flag == nil && f != nil {
		l.flag, l.prefix, l.current = f, name+"=", value
	}
	return l
}

func (l *commandLine) command() *cli.Command { return l.path[len(l.path)-1] }

// add adds a complete word.
func (l *commandLine) add(word string) {
	switch {
	case l.flag != nil:
		l.values[l.flag.Names()[0]] = word
		l.flag = nil
	case word == "--" && !l.argsOnly:
		l.argsOnly = true
	case l.isFlag(word):
		l.addFlag(word)
	case !l.argsOnly && len(l.args) == 0 && l.command().Command(word) != nil:
		l.path = append(l.path, l.command().Command(word))
	default:
		l.args = append(l.args, word)
	}
}

func (l *commandLine) isFlag(word string) bool {
	return !l.argsOnly && len(word) > 1 && strings.HasPrefix(word, "-")
}

func (l *commandLine) addFlag(word string) {
	name, value, given := strings.Cut(word, "=")
	switch f := l.find(name); {
	case f == nil || !takesValue(f):
	case given:
		l.values[f.Names()[0]] = value
	default:
		l.flag = f
	}
}

// find returns the flag with a name such as --output or -o, or nil.
func (l *commandLine) find(dashed string) cli.Flag {
	if !l.isFlag(dashed) {
		return nil
	}
	name := strings.TrimLeft(dashed, "-")
	for _, f := range l.flags() {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// flags returns the flags of the command, and then those of its parents.
func (l *commandLine) flags() []cli.Flag {
	var all []cli.Flag
	for i := len(l.path) - 1; i >= 0; i-- {
		all = append(all, l.path[i].Flags...)
	}
	return all
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// candidates returns the candidates for the current word.
func (l *commandLine) candidates(ctx context.Context) []candidate {
	switch {
	case l.flag != nil:
		return l.valuesOf(ctx, l.flag)
	case strings.HasPrefix(l.current, "-") && !l.argsOnly:
		return l.flagNames()
	}
	if len(l.args) == 0 && len(l.command().Commands) > 0 {
		return commandNames(l.command())
	}
	return l.argumentValues(ctx)
}

func (l *commandLine) flagNames() []candidate {
	var all []candidate
	for _, f := range l.flags() {
		help := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			help = strings.ReplaceAll(d.GetUsage(), "`", "")
		}
		all = append(all, candidate{"--" + f.Names()[0], help})
	}
	return all
}

func commandNames(c *cli.Command) []candidate {
	return mapped(visibleCommands(c), func(sub *cli.Command) candidate { return candidate{sub.Name, sub.Usage} })
}
