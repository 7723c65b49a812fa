//go:build unix

package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// change replaces files of the node so that they can be restored.
type change struct{ record *record }

// begin returns a change of what a record says; nil means that imagepin is not installed. The change is not nil if it must be
// rolled back because of the error.
func begin(before *record, to record) (*change, error) {
	if err := os.RemoveAll(previousDir); err != nil {
		return nil, err
	}
	to.State, to.Before = changing, before
	for _, path := range stateDirs {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			to.Absent = append(to.Absent, path)
		}
	}
	// What was in a directory that not everyone can read stays so.
	if err := os.MkdirAll(previousDir, 0o700); err != nil {
		return nil, err
	}
	// Another request replaces the staged command, and can be killed or find the disk full.
	if err := os.Link(filepath.Join(stagedDir, "bin/imagepin"), recoverCommand); err != nil {
		return nil, err
	}
	if err := syncDir(previousDir); err != nil {
		return nil, err
	}
	c := &change{&to}
	if err := c.record.save(); err != nil {
		return nil, err
	}
	return c, recoverAtBoot()
}

// put writes a file, unless it is the same already. wrote reports whether it is not.
func (c *change) put(t target) (wrote bool, _ error) {
	_, err := os.Stat(t.path)
	existed := err == nil
	if existed && t.keep {
		return false, nil
	}
	if same, err := hasContent(t.path, t.content, t.mode); err != nil || same {
		return false, err
	}
	if err := c.touch(t.path, existed); err != nil {
		return false, err
	}
	failpoint.Reach("install.write")
	if err := replaceFile(t.path, t.content, t.mode); err != nil {
		return false, err
	}
	failpoint.Reach("install.written")
	return true, nil
}

// remove removes a file.
func (c *change) remove(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := c.touch(path, true); err != nil {
		return err
	}
	failpoint.Reach("install.write")
	return os.Remove(path)
}

// touch notes that a file is about to change, and keeps a copy.
func (c *change) touch(path string, existed bool) error {
	if slices.ContainsFunc(c.record.Touched, func(t touched) bool { return t.Path == path }) {
		return nil // the first copy counts
	}
	if existed {
		if err := copyFile(filepath.Join(previousDir, path), path); err != nil {
			return err
		}
	}
	c.record.Touched = append(c.record.Touched, touched{path, existed})
	return c.record.save()
}

// restarts notes that services are about to be restarted, for a rollback.
func (c *change) restarts(units ...string) error {
	c.record.Restarted = append(c.record.Restarted, units...)
	return c.record.save()
}

// commit ends a change. The copies are not needed any more, see [finish].
func (c *change) commit() error {
	r := *c.record
	r.State, r.Before, r.Touched, r.Restarted, r.Dependents, r.Absent = installed, nil, nil, nil, nil, nil
	failpoint.Reach("install.commit")
	if err := r.save(); err != nil {
		return err
	}
	failpoint.Reach("install.committed")
	return nil
}

// finish removes what only a change needs.
func finish() error {
	if err := doNotRecover(); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(previousDir), os.RemoveAll(stagedDir))
}

// restore restores the files of a change. It can be repeated.
func (r *record) restore() error {
	for _, t := range slices.Backward(r.Touched) {
		var err error
		if t.Existed {
			err = copyFile(t.Path, filepath.Join(previousDir, t.Path))
		} else if err = os.Remove(t.Path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return err
		}
		failpoint.Reach("install.restored")
		// A killed process may have left a part of a file.
		if err := removeParts(t.Path); err != nil {
			return err
		}
		if !t.Existed {
			_ = os.Remove(filepath.Dir(t.Path)) // fails unless it is empty
		}
	}
	return nil
}

// hasContent reports whether a file has a content and a mode.
func hasContent(path string, content []byte, mode os.FileMode) (bool, error) {
	now, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := os.Stat(path)
	return err == nil && bytes.Equal(now, content) && info.Mode().Perm() == mode, err
}

func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	// On a full disk, a file that was not replaced need not be written.
	if same, err := hasContent(to, content, info.Mode().Perm()); err != nil || same {
		return err
	}
	if linkFile(to, from) == nil {
		return nil
	}
	return replaceFile(to, content, info.Mode().Perm())
}

// linkFile replaces a file by a link to another, which needs no space on a full disk. Nothing writes to a file of an
// installation in place. It fails between file systems.
func linkFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	part := filepath.Join(filepath.Dir(to), partPrefix(to)+"link")
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(from, part); err != nil {
		return err
	}
	if err := os.Rename(part, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}
