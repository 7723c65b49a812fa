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

// credentialHelp is part of the description of every command that sends requests to a registry.
const credentialHelp = `

With --user, requests to the registry use this user and a password from the terminal,
or with --password-stdin from standard input; otherwise the node's own credentials.
A password on the command line is visible to everyone who can list processes.`

func credentialFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "registry user and password, `NAME[:PASSWORD]`"},
		&cli.BoolFlag{Name: "password-stdin", Usage: "read the password from standard input"},
	}
}

// credential returns the credential in the flags, or nil. Its errors do not contain the values of the flags.
func (a *app) credential(ctx context.Context, cmd *cli.Command) (*api.Credential, error) {
	name, password, given := strings.Cut(cmd.String("user"), ":")
	fromStdin := cmd.Bool("password-stdin")
	switch {
	case name == "" && (given || fromStdin):
		return nil, errors.New("a password requires --user NAME")
	case name == "":
		return nil, nil
	case given && fromStdin:
		return nil, errors.New("--user with a password and --password-stdin exclude each other")
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

// argumentsAndCredential returns the [arguments] and the credential of a command that sends requests to a registry.
func (a *app) argumentsAndCredential(ctx context.Context, cmd *cli.Command, names ...string) ([]string, *api.Credential, error) {
	args, err := arguments(cmd, names...)
	if err != nil {
		return nil, nil, err
	}
	credential, err := a.credential(ctx, cmd)
	return args, credential, err
}

// askPassword prompts on the terminal, without echo.
func (a *app) askPassword(ctx context.Context) (string, error) {
	in, ok := terminal(a.In)
	if !ok {
		return "", errors.New("standard input is not a terminal, use --password-stdin")
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
		return "", errors.New("standard input is empty")
	}
	return password, err
}

// readLine reads one line. If ctx ends first, the read continues until the process ends.
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
		return "", context.Cause(ctx)
	}
}

// terminal returns f as a terminal, if it is one.
func terminal(f any) (console.Console, bool) {
	file, ok := f.(*os.File)
	if !ok {
		return nil, false
	}
	c, err := console.ConsoleFromFile(file)
	return c, err == nil
}

// redactPassword removes the password from an error.
func redactPassword(err error, c *api.Credential) error {
	if err == nil || redact(err.Error(), c) == err.Error() {
		return err
	}
	return errors.New(redact(err.Error(), c))
}

// redact removes the password from a text.
func redact(text string, c *api.Credential) string {
	if c.GetPassword() == "" {
		return text
	}
	return strings.ReplaceAll(text, c.GetPassword(), "[password]")
}
