package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/console"
	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// credentialHelp is in the description of every command that asks a registry.
const credentialHelp = `

With --user the registry is asked with that user's password, which is read from
the terminal, or with --password-stdin from standard input. A password after the
name (name:password) is seen by everybody who can list processes. Without --user
the registry is asked with the node's own credentials, if it has any.`

func credentialFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "ask the registry as `NAME[:PASSWORD]`"},
		&cli.BoolFlag{Name: "password-stdin", Usage: "read the password from standard input"},
	}
}

// credential is what the flags say of the registry's user, nil without one.
// No error repeats what was given.
func (a *app) credential(ctx context.Context, cmd *cli.Command) (*api.Credential, error) {
	name, password, given := strings.Cut(cmd.String("user"), ":")
	fromStdin := cmd.Bool("password-stdin")
	switch {
	case name == "" && (given || fromStdin):
		return nil, errors.New("a password needs a name: --user NAME")
	case name == "":
		return nil, nil
	case given && fromStdin:
		return nil, errors.New("the password is given twice: with --user and with --password-stdin")
	case given:
		return &api.Credential{Username: name, Password: password}, nil
	}
	read := a.askPassword
	if fromStdin {
		read = a.readPassword
	}
	password, err := read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the password: %w", err)
	}
	return &api.Credential{Username: name, Password: password}, nil
}

// askPassword asks at the terminal, without echo.
func (a *app) askPassword(ctx context.Context) (string, error) {
	in, ok := terminal(a.In)
	if !ok {
		return "", errors.New("there is no terminal to ask at, use --password-stdin")
	}
	if err := in.DisableEcho(); err != nil {
		return "", err
	}
	defer in.Reset()
	fmt.Fprint(a.Err, "Password: ")
	defer fmt.Fprintln(a.Err)
	return readLine(ctx, in)
}

func (a *app) readPassword(ctx context.Context) (string, error) {
	password, err := readLine(ctx, a.In)
	if err == nil && password == "" {
		return "", errors.New("there is none on standard input")
	}
	return password, err
}

// readLine reads one line, or until ctx ends: the read itself then goes on
// until the process ends.
func readLine(ctx context.Context, r io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		line, err := bufio.NewReader(r).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- read{strings.TrimRight(line, "\r\n"), err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", errors.New("interrupted")
	}
}

// terminal gives f as a terminal where it is one.
func terminal(f any) (console.Console, bool) {
	file, ok := f.(*os.File)
	if !ok {
		return nil, false
	}
	c, err := console.ConsoleFromFile(file)
	return c, err == nil
}

// hidden takes the password out of an error, whoever put it there.
func hidden(err error, c *api.Credential) error {
	if err == nil || c.GetPassword() == "" || !strings.Contains(err.Error(), c.GetPassword()) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), c.GetPassword(), "[password]"))
}
