package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// socketEnv is the socket of the run, for the processes in it.
	socketEnv = "IMAGEPIN_TESTLOG"
	// stdoutEnv identifies the standard output of the run.
	stdoutEnv = "IMAGEPIN_TESTLOG_STDOUT"
)

// stdout identifies the standard output of this process.
func stdout() string {
	var s syscall.Stat_t
	if err := syscall.Fstat(1, &s); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// listener receives the events of the processes of a run.
type listener struct {
	net.Listener
	handle func(Event)
	wg     sync.WaitGroup
}

func listen(handle func(Event)) (*listener, error) {
	dir, err := os.MkdirTemp("", "testlog")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &listener{Listener: l, handle: handle}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				defer c.Close()
				d := json.NewDecoder(c)
				for {
					var e Event
					if d.Decode(&e) != nil {
						return // closes the connection, which tells the sender that all is handled
					}
					handle(e)
				}
			}()
		}
	}()
	return s, nil
}

// close waits for all that was sent.
func (l *listener) close() error {
	err := l.Close()
	l.wg.Wait()
	return errors.Join(err, os.RemoveAll(filepath.Dir(l.Addr().String())))
}

// connect returns a function that sends events to the run of this process, and one that waits until all are handled.
func connect(socket string) (send func(Event), done func(rc int) error, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var failed error
	enc := json.NewEncoder(c)
	send = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, enc.Encode(e))
	}
	done = func(int) error {
		defer c.Close()
		err := c.(*net.UnixConn).CloseWrite()
		_, read := io.Copy(io.Discard, c)
		return errors.Join(failed, err, read)
	}
	return send, done, nil
}

// run runs a command, and passes on the signals that end it. It returns its exit code.
func run(cmd *exec.Cmd) (int, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-stop:
				return
			}
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return 128 + int(s.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// runAll runs commands until one fails, prints what their processes report, and a summary at the end.
func runAll(w io.Writer, stages, leftOut []string, commands [][]string) (int, error) {
	p := newPrinter(w)
	l, err := listen(p.handle)
	if err != nil {
		return 1, err
	}
	rc := 0
	for _, c := range commands {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Env = append(os.Environ(), socketEnv+"="+l.Addr().String(), stdoutEnv+"="+stdout())
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, w, w
		if rc, err = run(cmd); rc != 0 || err != nil {
			break
		}
	}
	err = errors.Join(err, l.close())
	if err != nil && rc == 0 {
		rc = 1
	}
	if rc == 0 && !p.complete(stages, leftOut) {
		rc = 1
	}
	p.summary(stages, leftOut, rc)
	return rc, err
}

// runTests runs go test, and reports its packages and tests.
func runTests(w io.Writer, stage string, args []string) (int, error) {
	send, done, err := reporter(w)
	if err != nil {
		return 1, err
	}
	send(Event{Kind: StageBegins, Stage: stage})
	cmd := goTest(args)
	var stderr bytes.Buffer
	out, in := io.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, in, &stderr
	p := newParser(stage, verbose(args), send)
	var rest string
	var reading error
	read := make(chan struct{})
	go func() {
		defer close(read)
		rest, reading = p.read(out)
	}()
	rc, err := run(cmd)
	_ = in.Close()
	<-read
	if rest += stderr.String() + p.rest(); rc != 0 && (!p.failed || rest != "" || rc > 128) {
		command := strings.Join(args, " ")
		p.failure(command, "", rest+fmt.Sprintf("exit status %d\n", rc))
		send(Event{Kind: ItemEnds, Stage: stage, Item: command, Failed: true, Empty: true})
	}
	return rc, errors.Join(err, reading, done(rc))
}

// reporter returns where this process reports. Without a run that is a printer, which prints a summary at the end.
func reporter(w io.Writer) (send func(Event), done func(rc int) error, err error) {
	if socket := os.Getenv(socketEnv); socket != "" {
		return connect(socket)
	}
	p := newPrinter(w)
	return p.handle, func(rc int) error { p.summary(nil, nil, rc); return nil }, nil
}

// goTest returns the command go test with -json. Its tests do not report to the run.
func goTest(args []string) *exec.Cmd {
	at := slices.Index(args, "test") + 1
	cmd := exec.Command(args[0], slices.Insert(slices.Clone(args[1:]), at-1, "-json")...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, socketEnv+"=") || strings.HasPrefix(v, "MAKEFLAGS=") || strings.HasPrefix(v, "MAKELEVEL=")
	})
	return cmd
}

func verbose(args []string) bool { return slices.Contains(args, "-v") }

// runShell runs a command of a Makefile as its shell. In a run, the output of a command is only shown if it fails.
func runShell(target string, shell []string) (int, error) {
	cmd := exec.Command(shell[0], shell[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Make reads the output of its function shell, and a command reads that of a make which it runs.
	socket := os.Getenv(socketEnv)
	if socket == "" || target == "" || stdout() != os.Getenv(stdoutEnv) {
		return run(cmd)
	}
	send, done, err := connect(socket)
	if err != nil {
		return 1, err
	}
	command := shell[len(shell)-1]
	// These report on their own.
	nested := strings.Contains(command, os.Args[0]+" ")
	if !nested {
		send(Event{Kind: ItemBegins, Stage: target, Item: command})
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	rc, err := run(cmd)
	if rc != 0 && (!nested || out.Len() > 0) {
		send(Event{Kind: Failure, Stage: target, Item: command, Output: out.String() + fmt.Sprintf("exit status %d\n", rc)})
	}
	if !nested || rc != 0 {
		send(Event{Kind: ItemEnds, Stage: target, Item: command, Command: true, Failed: rc != 0, Seconds: time.Since(begin).Seconds()})
	}
	return rc, errors.Join(err, done(rc))
}

// endStage reports that all commands of a stage have succeeded.
func endStage(stage string) error {
	socket := os.Getenv(socketEnv)
	if socket == "" {
		return nil
	}
	send, done, err := connect(socket)
	if err != nil {
		return err
	}
	send(Event{Kind: StageEnds, Stage: stage})
	return done(0)
}
