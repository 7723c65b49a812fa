package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("failed"), 1},
		{exitError(exitChanged), 10},
		{signalError{os.Interrupt}, 130},
		{fmt.Errorf("read the password: %w", signalError{os.Interrupt}), 130},
		{signalError{syscall.SIGTERM}, 143},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%v: got %d, want %d", test.err, got, test.want)
		}
	}
}

func TestWithSignals(t *testing.T) {
	for s, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, stop := WithSignals(t.Context())
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if got := exitCode(context.Cause(ctx)); got != want {
			t.Errorf("%s: got exit code %d, want %d", s, got, want)
		}
		stop()
	}
}

// TestSecondSignal checks that a second signal ends a command whose output nobody reads.
func TestSecondSignal(t *testing.T) {
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, recorded()) })
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "--address", address, "images", "-o", "jsonpath="+strings.Repeat("x", 100_000))
	cmd.Env, cmd.Stdout = append(os.Environ(), asCommand+"=1"), write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if _, err := read.Read(make([]byte, 1)); err != nil { // the rest does not fit into the pipe
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
				t.Errorf("got %v, want an end by SIGTERM", err)
			}
			return
		case <-time.After(10 * time.Millisecond):
			_ = cmd.Process.Signal(syscall.SIGTERM) // may have ended
		}
	}
}
