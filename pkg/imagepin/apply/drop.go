package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// dropped is the content of the drop directories.
type dropped struct {
	locks, bundles []string // paths, sorted by name
	bundleIDs      []digest.Digest
	// id identifies the content: the names and the content of the locks and bundles.
	id digest.Digest
}

// ApplyDropped applies the content of the drop directories: all locks of the one together, or, if it has none, the lock of the
// bundle whose name is the last. The bundles supply content. Without again, it does nothing if the directories are empty, or their
// content was applied before.
//
// It fails as [Applier.Apply] does, with InvalidLock if two locks have different digests of a reference, and with UnknownLock
// (ErrNotFound) if the directories are empty and again is true.
func (a *Applier) ApplyDropped(ctx context.Context, r Request, again bool) (Result, error) {
	s := a.config.Settings()
	// Without a turn, because an apply fails while another one has it.
	if d, err := readDropped(s.LocksDirectory, s.BundlesDirectory); err == nil && !again && a.isApplied(d) {
		return Result{}, nil
	}
	ctx, turn, err := a.begin(ctx, nil)
	if err != nil {
		return Result{}, err
	}
	defer turn.end()
	r.Name = "drop directories"
	d, err := readDropped(s.LocksDirectory, s.BundlesDirectory)
	if err != nil {
		return Result{}, a.noteFailure(r, err)
	}
	if d.empty() && again {
		return Result{}, nothingDropped(s)
	}
	if !again && a.isApplied(d) {
		return Result{}, nil
	}
	if !r.DryRun {
		a.turns.setDropped(d.id)
	}
	opened, err := d.openBundles()
	defer func() {
		for _, b := range opened {
			_ = b.Close() // it was only read
		}
	}()
	if err != nil {
		return Result{}, a.noteFailure(r, err)
	}
	l, name, err := d.lock(opened)
	if err != nil {
		return Result{}, a.noteFailure(r, err)
	}
	r.Lock, r.Name, r.dropped = l, name, d.id
	if len(opened) > 0 {
		if r.Bundle, err = joinBundles(l, opened); err != nil {
			return Result{}, a.noteFailure(r, err)
		}
	}
	return a.applyAndNote(ctx, r)
}

// empty reports whether the drop directories have neither a lock nor a bundle.
func (d dropped) empty() bool { return len(d.locks)+len(d.bundles) == 0 }

// isApplied reports whether there is nothing in the drop directories that was not applied last.
func (a *Applier) isApplied(d dropped) bool { return d.empty() || d.id == a.config.State.Get().Dropped }

// nothingDropped returns the error for drop directories without files.
func nothingDropped(s Settings) error {
	e := unknownLock("the drop directories have neither a lock nor a bundle")
	e.Hint = fmt.Sprintf("Put a lock into locks_directory (%s), or a bundle into bundles_directory (%s), or name a file: imagepin apply FILE",
		cmp.Or(s.LocksDirectory, "not set"), cmp.Or(s.BundlesDirectory, "not set"))
	return e
}

// readDropped lists the drop directories. A directory that does not exist is empty. It fails with [imagepin.InvalidBundle] for a file
// that is no bundle, and with [imagepin.InvalidRequest] for a directory or a file that others than its owner can write, or that root
// or this user does not own.
func readDropped(locksDir, bundlesDir string) (d dropped, err error) {
	if d.locks, err = listDir(locksDir, config.IsLockName); err != nil {
		return d, err
	}
	if d.bundles, err = listDir(bundlesDir, config.IsBundleName); err != nil {
		return d, err
	}
	id := digest.Canonical.Digester()
	for _, path := range d.locks {
		of, err := lockFileDigest(path)
		if err != nil {
			return d, err
		}
		fmt.Fprintf(id.Hash(), "lock %q %s\n", filepath.Base(path), of)
	}
	for _, path := range d.bundles {
		of, err := bundle.ID(path)
		if err != nil {
			return d, err
		}
		d.bundleIDs = append(d.bundleIDs, of)
		fmt.Fprintf(id.Hash(), "bundle %q %s\n", filepath.Base(path), of)
	}
	d.id = id.Digest()
	return d, nil
}

func lockFileDigest(path string) (digest.Digest, error) {
	f, err := bundle.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digest.FromReader(io.LimitReader(f, lock.MaxSize+1))
}

// listDir returns the files of a directory that are locks or bundles by their names, sorted.
func listDir(dir string, is func(name string) bool) (paths []string, _ error) {
	if dir == "" {
		return nil, nil
	}
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = checkOwner("directory", dir)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !is(f.Name()) {
			continue
		}
		path := filepath.Join(dir, f.Name())
		if err := checkOwner("file", path); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func (d dropped) openBundles() (all []*bundle.Bundle, _ error) {
	for n, path := range d.bundles {
		b, err := bundle.Open(path)
		if err != nil {
			return all, err
		}
		all = append(all, b)
		if b.ID() != d.bundleIDs[n] {
			return all, fmt.Errorf("%s was replaced while it was read: %w", path, errdefs.ErrUnavailable) // tried again
		}
	}
	return all, nil
}

// lock returns the lock of the drop directories, and its name. opened are the bundles, in their order.
func (d dropped) lock(opened []*bundle.Bundle) (*lock.Lock, string, error) {
	if len(d.locks) == 0 {
		last := len(opened) - 1
		return opened[last].Lock(), fileName(d.bundles[last]), nil
	}
	var images []lock.Image
	for _, path := range d.locks {
		l, err := readLock(path)
		if err != nil {
			return nil, "", err
		}
		if images = append(images, l.Images...); len(images) > lock.MaxImages {
			break // New fails
		}
	}
	l, err := lock.New(images)
	if err != nil {
		var known *imagepin.Error
		if errors.As(err, &known) {
			known.Message = filepath.Dir(d.locks[0]) + ": " + known.Message
		}
		return nil, "", err
	}
	if len(d.locks) == 1 {
		return l, fileName(d.locks[0]), nil
	}
	return l, fmt.Sprintf("%d files in %s", len(d.locks), filepath.Dir(d.locks[0])), nil
}

// noteFailure notes the failure of a request for the status, and returns it.
func (a *Applier) noteFailure(r Request, err error) error {
	if !r.DryRun {
		a.note(r.Name, err)
	}
	return err
}
