package durable

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteLoop returns when a file has what is written in a file system that is mounted from it with a loop device. After the file system
// is unmounted, it still is in other mount namespaces that were copied before, such as that of a container that starts. Until they end,
// the file lacks what is in memory. It then calls sync(2), which needs no access to the device. It fails with the context's error.
func WriteLoop(ctx context.Context, file string) error {
	if attached, err := isAttached("/sys/block", file); err != nil || !attached {
		return err
	}
	done := make(chan struct{})
	go func() {
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isAttached reports whether a loop device has the file. A process in a mount namespace of its own may see only the end of its path.
func isAttached(devices, file string) (bool, error) {
	all, err := filepath.Glob(filepath.Join(devices, "loop*", "loop", "backing_file"))
	if err != nil {
		return false, err
	}
	for _, device := range all {
		// The attribute of a device that was detached in the meantime does not exist.
		if path, err := os.ReadFile(device); err == nil && strings.HasSuffix(file, strings.TrimSuffix(string(path), "\n")) {
			return true, nil
		}
	}
	return false, nil
}
