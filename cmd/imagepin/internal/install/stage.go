//go:build unix

package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Paths on the node that a request and Apply use to communicate.
const (
	systemdSocket = "/run/systemd/private"
	runDir        = "/run/imagepin-install"
	logFile       = runDir + "/log"
	resultFile    = runDir + "/result"
	lockFile      = runDir + "/lock"       // of requests
	applyLockFile = runDir + "/apply-lock" // of processes on the node
)

// ApplyCommand is the hidden command that calls [Main].
const ApplyCommand = "apply-install"

// Request is a change of the node whose root directory is Root.
type Request struct {
	Options
	Root string
	// From is the root of the files to install, as the node image and the tarballs of a release have them. Uninstall does
	// not need it.
	From string
	// Config is a configuration of imagepin serve that replaces the node's. Empty keeps that, or writes the default.
	Config string
	// Out receives what the change does.
	Out io.Writer
}

// Run copies the files to the node, lets the node's systemd make the change, and waits for the result. The change goes on if
// ctx ends. Run does nothing if imagepin is to be removed and is not installed.
//
// Besides the errors of [Apply], it fails if the node has no systemd, and if another process changes the node and ctx ends.
func (r Request) Run(ctx context.Context) error {
	root, err := os.OpenRoot(r.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	s, err := openSystemd(ctx, filepath.Join(r.Root, systemdSocket))
	if err != nil {
		return fmt.Errorf("%s is not the root of a node with systemd: %w", r.Root, err)
	}
	defer s.Close()
	unlock, err := r.lock(ctx, root, s)
	if err != nil {
		return err
	}
	defer unlock()
	if r.Action == Uninstall {
		if !slices.ContainsFunc([]string{dir, containerdDropIn, serviceFile}, func(path string) bool {
			_, err := root.Lstat(in(path))
			return !errors.Is(err, fs.ErrNotExist)
		}) {
			fmt.Fprintln(r.Out, "imagepin is not installed by imagepin install on this node")
			return nil
		}
	}
	if err := r.stage(root); err != nil {
		return errors.Join(fmt.Errorf("copy files to the node: %w", err), unstage(root))
	}
	options, err := json.Marshal(r.Options)
	if err != nil {
		return err
	}
	// A killed process is started again, and rolls back. Apply itself ends with a result.
	err = s.run(ctx, applyUnit, "Change of imagepin on this node",
		[]string{path.Join(stagedDir, "bin/imagepin"), ApplyCommand, string(options)},
		property("Restart", "on-failure"), property("RestartUSec", uint64(time.Second/time.Microsecond)))
	if err != nil {
		return err
	}
	return r.follow(ctx, root, s)
}

// in returns the path below a root of a path on the node.
func in(path string) string { return strings.TrimPrefix(path, "/") }

// lock waits until no other request changes the node.
func (r Request) lock(ctx context.Context, root *os.Root, s *systemd) (unlock func(), _ error) {
	if err := root.MkdirAll(in(runDir), 0o700); err != nil {
		return nil, err
	}
	f, err := root.OpenFile(in(lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	waits := false
	err = await(ctx, func(ctx context.Context) (err error) {
		defer func() {
			if err != nil && !waits {
				fmt.Fprintf(r.Out, "waiting: %v\n", err)
				waits = true
			}
		}()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return fmt.Errorf("another process changes this node: %w", err)
		}
		// The request of this change may have been killed.
		for _, unit := range []string{applyUnit, recoverUnit} {
			if running, err := s.active(ctx, unit); err != nil {
				return err
			} else if running {
				return fmt.Errorf("%s still runs", unit)
			}
		}
		return nil
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// stage copies the files of the mode to [stagedDir].
func (r Request) stage(root *os.Root) error {
	from, err := r.sources()
	if err != nil {
		return err
	}
	if err := root.RemoveAll(in(stagedDir)); err != nil {
		return err
	}
	if err := root.MkdirAll(path.Join(in(stagedDir), "bin"), 0o755); err != nil {
		return err
	}
	for source, to := range from {
		if to == "config.toml" && r.Config != "" {
			source = r.Config
			if err := root.WriteFile(path.Join(in(stagedDir), configGiven), nil, 0o600); err != nil {
				return err
			}
		}
		if err := copyTo(root, path.Join(in(stagedDir), to), source); err != nil {
			return err
		}
	}
	for _, file := range []string{logFile, resultFile} {
		if err := root.Remove(in(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return root.WriteFile(in(logFile), nil, 0o600)
}

// unstage removes the copied files. The directory stays if imagepin is installed, or if a change is to be rolled back.
func unstage(root *os.Root) error {
	err := root.RemoveAll(in(stagedDir))
	_ = root.Remove(in(dir)) // fails unless it is empty
	return err
}

// sources returns the files to copy, and their paths below [stagedDir]. A removal only needs this command.
func (r Request) sources() (map[string]string, error) {
	if r.Action == Install {
		return sources(r.From, r.Mode), nil
	}
	self, err := os.Executable()
	return map[string]string{self: "bin/imagepin"}, err
}

func copyTo(root *os.Root, to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	mode := os.FileMode(0o600)
	if strings.Contains(to, "/bin/") {
		mode = 0o755
	}
	dst, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// result is what [Main] writes at its end.
type result struct {
	Error      string `json:"error,omitempty"`
	RolledBack bool   `json:"rolledBack,omitempty"`
	Refused    bool   `json:"refused,omitempty"`
}

func (r result) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.RolledBack:
		return resultError{r.Error, ErrRolledBack}
	case r.Refused:
		return resultError{r.Error, ErrRefused}
	}
	return errors.New(r.Error)
}

// resultError is an error of another process.
type resultError struct {
	text  string
	class error
}

func (e resultError) Error() string { return e.text }
func (e resultError) Unwrap() error { return e.class }

// follow copies the log of the change until its end, and returns its result.
func (r Request) follow(ctx context.Context, root *os.Root, s *systemd) error {
	log, err := root.Open(in(logFile))
	if err != nil {
		return err
	}
	defer log.Close()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		running, err := s.active(ctx, applyUnit)
		if _, err := io.Copy(r.Out, log); err != nil {
			return err
		}
		if err == nil && !running {
			return errors.Join(readResult(root), unstage(root))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; the change goes on: see the journal of %s", context.Cause(ctx), applyUnit)
		}
	}
}

func readResult(root *os.Root) error {
	b, err := root.ReadFile(in(resultFile))
	if err != nil {
		return fmt.Errorf("%s ended without a result, see its journal: %w", applyUnit, err)
	}
	var done result
	if err := json.Unmarshal(b, &done); err != nil {
		return fmt.Errorf("%s: %w", resultFile, err)
	}
	return done.err()
}

// Main calls [Apply] on the node. options are those of a request, in JSON. The error of the change is in its result, and Main
// only returns one if it cannot write that.
func Main(ctx context.Context, options string, out io.Writer) error {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o700); err != nil { // it is gone after a reboot
		return err
	}
	// After a reboot, the unit that recovers can run when a request starts this.
	lock, err := os.OpenFile(applyLockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", applyLockFile, err)
	}
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	err = Apply(ctx, o, io.MultiWriter(out, log))
	var done result
	if err != nil {
		done = result{Error: err.Error(), RolledBack: errors.Is(err, ErrRolledBack), Refused: errors.Is(err, ErrRefused)}
	}
	b, err := json.Marshal(done)
	if err != nil {
		return err
	}
	return replaceFile(resultFile, b, 0o600)
}
