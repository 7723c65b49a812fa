//go:build unix

package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// state is how far a change is.
type state string

const (
	installed state = "installed"
	// changing means that the files in Touched may have changed, and that their copies are in [previousDir].
	changing state = "changing"
	// removing means that the node does not need imagepin any more, and that its files are about to be removed.
	removing state = "removing"
)

// record is what the installer knows of a node.
type record struct {
	Version string `json:"version"`
	Mode    Mode   `json:"mode"`
	State   state  `json:"state"`
	// Files are the paths of files that are removed with imagepin.
	Files []string `json:"files,omitempty"`
	// Kubelet is the file with kubelet's endpoint; nil if it was not changed.
	Kubelet *kubeletFile `json:"kubelet,omitempty"`
	// Restarted are the services that a change has restarted, or is about to, in order.
	Restarted []string `json:"restarted,omitempty"`
	// Dependents are the units that were active before a change has restarted containerd, and require it.
	Dependents []string  `json:"dependents,omitempty"`
	Touched    []touched `json:"touched,omitempty"`
	// Absent are the directories of imagepin.service that a first installation did not find.
	Absent []string `json:"absent,omitempty"`
	// Before is the record before the change; nil before the first.
	Before *record `json:"before,omitempty"`
}

// touched is a file that a change replaces.
type touched struct {
	Path string `json:"path"`
	// Existed reports whether the file existed before. Its copy has the same path below [previousDir].
	Existed bool `json:"existed"`
}

// kubeletFile is a file with kubelet's container runtime endpoint.
type kubeletFile struct {
	Path string `json:"path"`
	// Flag reports whether it has the endpoint as a flag.
	Flag   bool   `json:"flag,omitempty"`
	Before []byte `json:"before"`
	After  []byte `json:"after"`
	// Endpoint is the endpoint before.
	Endpoint string `json:"endpoint"`
}

// loadRecord returns nil if there is none.
func loadRecord(path string) (*record, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, &recordError{path, err}
	}
	return r, nil
}

// recordError says that a record is damaged.
type recordError struct {
	path string
	err  error
}

func (e *recordError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.path, e.err) }

// findInstalled returns a record of the files of an installation whose record is lost; nil if there are none. Without it, a
// removal would leave units that run what is gone.
func findInstalled() (*record, error) {
	for mode, units := range map[Mode][]string{Plugin: {containerdDropIn}, Serve: {serviceFile, socketFile, kubeletDropIn}} {
		content, err := os.ReadFile(units[0])
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if !strings.Contains(string(content), binDir+"/") {
			continue
		}
		r := &record{Mode: mode, State: installed, Files: units}
		for _, name := range mode.binaries() {
			r.Files = append(r.Files, filepath.Join(binDir, name))
		}
		return r, nil
	}
	return nil, nil
}

func (r *record) save() error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(recordFile, append(b, '\n'), 0o600)
}

// replaceFile writes a file that is never seen half written, also after a crash of the node.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), partPrefix(path)+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if now, err := os.Stat(path); err == nil { // kubelet's files can have another owner
		if s, ok := now.Sys().(*syscall.Stat_t); ok {
			if err := f.Chown(int(s.Uid), int(s.Gid)); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// partPrefix is the prefix of the names of unfinished files.
func partPrefix(path string) string { return "." + filepath.Base(path) + ".imagepin-" }

// removeParts removes what a killed replaceFile has left of a file.
func removeParts(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix(path)) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
