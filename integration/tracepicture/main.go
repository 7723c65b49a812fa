// Command tracepicture pulls an image on a new node with imagepin, and draws the spans of the trace into an SVG file.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tracepicture:", err)
		os.Exit(1)
	}
}

// command draws the picture into the file that the arguments name.
func command(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("got %d arguments, want the file to write", len(args))
	}
	spans, err := coldPull(ctx)
	if err != nil {
		return err
	}
	root, err := treeOf(spans)
	if err != nil {
		return err
	}
	picture, err := draw(layOut(root))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(args[0]), 0o755); err != nil {
		return err
	}
	return os.WriteFile(args[0], picture, 0o644)
}
