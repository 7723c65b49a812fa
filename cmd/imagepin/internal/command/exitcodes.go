package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitChanged     = 10  // refresh changed a digest, or lock --check, lock status, pin ls --check or ps found a difference
	exitInterrupted = 130 // 128 and the number of the signal, as in a shell
	exitTerminated  = 143
)

// exitCodes are the exit codes of all commands. The help and docs/cli.md have the same texts.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "success"},
	{exitFailed, "the command failed, check has findings that are not repaired, status has problems, a registry did not answer pin ls --check, a snapshotter did not answer du, or uninstall or prune has no --yes"},
	{exitChanged, "refresh succeeded, and a digest changed; or lock --check, lock status, pin ls --check or ps found a difference"},
	{exitInterrupted, "interrupted (SIGINT, Ctrl-C)"},
	{exitTerminated, "terminated (SIGTERM); serve ends with 0 after the running calls"},
}

// exitCodesText lists the exit codes, one in each line.
func exitCodesText() string {
	rows := make([][]string, len(exitCodes))
	for i, e := range exitCodes {
		rows[i] = []string{strconv.Itoa(e.code), e.meaning}
	}
	var text bytes.Buffer
	_ = table(&text, []string{"CODE", "MEANING"}, rows) // a buffer accepts all writes
	return text.String()
}

// exitError ends the command with an exit code and without a message, because the command has already printed its
// output.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// signalError is the cause of a context that a signal canceled.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string {
	if e.signal == syscall.SIGTERM {
		return "terminated"
	}
	return "interrupted"
}

func (e signalError) exitCode() int {
	if e.signal == syscall.SIGTERM {
		return exitTerminated
	}
	return exitInterrupted
}

// exitCode returns the exit code for the error of a command.
func exitCode(err error) int {
	var exit exitError
	var signaled signalError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, &signaled):
		return signaled.exitCode()
	}
	return exitFailed
}

// WithSignals returns a context that SIGINT and SIGTERM cancel. [Run] returns the exit code of the signal. stop
// restores the default behavior of the signals, as does the first one, so that a second one ends a command that waits for something else.
func WithSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
