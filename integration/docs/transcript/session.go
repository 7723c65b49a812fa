package transcript

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Shell runs the commands of a session in bash, as a reader would. The zero value runs them in the current directory.
type Shell struct {
	Dir string
	// Env is the environment of the commands.
	Env []string

	seen        strings.Builder
	here, there []string // pairs
}

// Replace makes commands use real instead of what the document shows, for example for a path. Outputs have it the other
// way round. The first of two texts that begin at the same place is replaced.
func (s *Shell) Replace(shown, real string) {
	s.here, s.there = append(s.here, shown, real), append(s.there, real, shown)
}

// Here returns a text of the document with what is real.
func (s *Shell) Here(text string) string { return strings.NewReplacer(s.here...).Replace(text) }

// There returns a real text with what the document shows.
func (s *Shell) There(text string) string { return strings.NewReplacer(s.there...).Replace(text) }

// See keeps the digests in a text, so that later commands can use them in their short form.
func (s *Shell) See(text string) { s.seen.WriteString(text + "\n") }

// Run runs a command of the document, and returns what it prints to stdout and stderr. An exit code is no error.
func (s *Shell) Run(ctx context.Context, command string) (string, error) {
	out, _, err := s.run(ctx, command)
	return out, err
}

// Must is Run for a command that has to succeed.
func (s *Shell) Must(ctx context.Context, command string) (string, error) {
	out, code, err := s.run(ctx, command)
	if err == nil && code != 0 {
		err = fmt.Errorf("$ %s: exit code %d: %s", command, code, out)
	}
	return out, err
}

func (s *Shell) run(ctx context.Context, command string) (string, int, error) {
	cmd := exec.CommandContext(ctx, "bash", "-c", Expand(s.Here(command), s.seen.String()))
	cmd.Dir, cmd.Env = s.Dir, s.Env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || ctx.Err() != nil {
		return "", 0, fmt.Errorf("$ %s: %w", command, err)
	}
	s.See(string(out))
	return string(out), cmd.ProcessState.ExitCode(), nil
}

// Play runs the items of a session until one fails: commands with command, steps with step, which gets the name and the
// arguments. It passes what the document shows to check. Outputs have what the document shows, see [Shell.Replace].
func (s *Shell) Play(items []Item, command func(string) (string, error), step func(name string, args []string) (string, error), check func(Item, string) error) error {
	for _, i := range items {
		var out string
		var err error
		switch i.Kind {
		case Command:
			out, err = command(i.Text)
		case Step, Output:
			args := strings.Fields(i.Text)
			out, err = step(args[0], args[1:])
			s.See(out)
		case Session, NotRun:
			continue
		}
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", i.Line, i.Text, err)
		}
		if i.Kind == Step {
			continue
		}
		if err := check(i, s.There(out)); err != nil {
			return err
		}
	}
	return nil
}
