// Package script is what the demos have in common: they print paragraphs, and end by themselves, by a signal, or when
// nobody reads their output any more.
package script

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// width is the maximum length of a printed line.
const width = 110

// Run runs a demo until it returns. Its context ends after the timeout, by SIGINT, SIGTERM or SIGHUP, or when it cannot
// write its output.
func Run(timeout time.Duration, demo func(ctx context.Context, out io.Writer) error) error {
	// Without this, a closed standard output would kill the process before it cleans up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, expire := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished after %s", timeout))
	defer expire()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return demo(ctx, &output{file: os.Stdout, closed: cancel})
}

// output ends the demo when a write fails, such as to a pipe without a reader.
type output struct {
	file   *os.File
	closed context.CancelCauseFunc
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if err != nil {
		o.closed(err)
	}
	return n, err
}

// Say prints a paragraph. It wraps lines that are too long, and keeps their indentation.
func Say(out io.Writer, format string, args ...any) {
	for line := range strings.Lines(fmt.Sprintf(format, args...) + "\n") {
		fmt.Fprintln(out, wrap(strings.TrimRight(line, "\n")))
	}
}

// wrap breaks a line between words. The next line of a list item ("- " or "[1] ") is indented to the item's text.
func wrap(line string) string {
	text := strings.TrimLeft(line, " ")
	indent := len(line) - len(text)
	if mark, _, ok := strings.Cut(text, " "); ok && (mark == "-" || strings.HasPrefix(mark, "[")) {
		indent += len(mark) + 1
	}
	var b strings.Builder
	b.WriteString(line[:len(line)-len(text)])
	at := b.Len()
	for i, word := range strings.Split(text, " ") {
		switch {
		case i == 0:
		case at+1+len(word) > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}
