//go:build !linux

package durable

import "context"

// WriteLoop does nothing: this system has no loop devices.
func WriteLoop(context.Context, string) error { return nil }
