package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
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
