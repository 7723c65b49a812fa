package imagerefs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Stdin is the name of standard input.
const Stdin = "-"

// Limits of the input.
const (
	// MaxFile is the maximum size of a file in bytes, and MaxTotal that of all files together.
	MaxFile  = 16 << 20
	MaxTotal = 256 << 20
	// maxErrors is the maximum number of errors that Read returns.
	maxErrors = 100
)

// Read returns the references in files and directories in the order of names, each text once. [Stdin] is stdin. In a
// directory, it reads the files *.yaml, *.yml, *.json and *.txt (plain lists), also in its subdirectories, in the order of
// their names. It ignores names that begin with a dot. A symbolic link is followed to a file in the directory only.
//
// It refuses a kustomization, also one in a directory: its resources are not those of the files.
//
// It returns all references and all errors together. Errors are [imagepin.Error] with InvalidReference or InvalidRequest
// (ErrInvalidArgument), or of the file system; each names its file.
func (o Options) Read(stdin io.Reader, names ...string) ([]Ref, error) {
	r := &reader{options: o, stdin: stdin, seen: make(map[string]bool), used: make([]bool, len(o.Fields)), taken: make(map[Place]bool)}
	for _, name := range names {
		r.input(name)
	}
	r.unusedFields()
	return r.refs, errors.Join(r.errs...)
}

// Options are options to read references.
type Options struct {
	// Fields are fields of resources that have an image, in addition to those of pod specs. Each must be found.
	Fields []Field
	// Skipped is called for what looks like an image in another field. It may be nil.
	Skipped func(Skipped)
}

type reader struct {
	options Options
	used    []bool         // fields that were found
	taken   map[Place]bool // fields whose image was added

	stdin io.Reader
	total int64
	refs  []Ref
	seen  map[string]bool // texts of refs
	errs  []error
}

func (r *reader) fail(err error) {
	switch {
	case len(r.errs) < maxErrors:
		r.errs = append(r.errs, err)
	case len(r.errs) == maxErrors:
		r.errs = append(r.errs, fmt.Errorf("more than %d errors", maxErrors))
	}
}

func (r *reader) add(text string, place Place) {
	ref, err := Parse(text, place)
	if err != nil {
		r.fail(err)
		return
	}
	if !r.seen[text] {
		r.seen[text] = true
		r.refs = append(r.refs, ref)
	}
}

// input reads one of the names.
func (r *reader) input(name string) {
	if name == Stdin {
		r.file(name, r.stdin, false)
		return
	}
	info, err := os.Stat(name)
	if err != nil {
		r.fail(err)
		return
	}
	if info.IsDir() {
		r.directory(name)
		return
	}
	f, err := os.Open(name)
	if err != nil {
		r.fail(err)
		return
	}
	defer f.Close()
	r.file(name, f, filepath.Ext(name) == ".txt")
}

func (r *reader) directory(name string) {
	root, err := os.OpenRoot(name)
	if err != nil {
		r.fail(err)
		return
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			r.fail(inDirectory(name, at, err))
			return nil
		case at != "." && strings.HasPrefix(path.Base(at), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case isKustomization(at):
			dir := filepath.Join(name, filepath.FromSlash(path.Dir(at)))
			r.fail(kustomization(dir, dir))
			return fs.SkipDir
		case entry.Type()&fs.ModeSymlink != 0 && r.linkedDirectory(name, at):
			return nil
		case entry.IsDir() || !hasManifests(at):
			return nil
		}
		if err := r.inRoot(root, name, at); err != nil {
			r.fail(inDirectory(name, at, err))
		}
		return nil
	})
	if err != nil {
		r.fail(err)
	}
}

// isKustomization reports whether a file of a directory is its kustomization.
func isKustomization(name string) bool {
	switch path.Base(name) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}

// linkedDirectory reports whether a symbolic link in a directory is one to a directory. Those are not followed, so it fails
// unless the files there are read anyway.
func (r *reader) linkedDirectory(name, at string) bool {
	link := filepath.Join(name, filepath.FromSlash(at))
	if info, err := os.Stat(link); err != nil || !info.IsDir() {
		return false // a file, or inRoot has the error
	}
	root, err := filepath.EvalSymlinks(name)
	if err == nil {
		link, err = filepath.EvalSymlinks(link)
	}
	if err == nil {
		link, err = filepath.Rel(root, link)
	}
	hidden := func(name string) bool { return strings.HasPrefix(name, ".") && name != "." }
	switch {
	case err != nil:
		r.fail(inDirectory(name, at, err))
	case slices.ContainsFunc(strings.Split(filepath.ToSlash(link), "/"), hidden):
		r.fail(InvalidInput(filepath.Join(name, filepath.FromSlash(at))+" is a symbolic link to a directory, and is not followed",
			"Name the directory with -f as well, or remove the link."))
	}
	return true
}

// kustomization returns the error for a kustomization, which is at a place, and is rendered from dir.
func kustomization(place, dir string) error {
	return InvalidInput(place+" has a kustomization, which can change images", fmt.Sprintf("Render it first: kubectl kustomize %s | imagepin lock -f -", dir))
}

// hasManifests reports whether a file of a directory is read.
func hasManifests(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json", ".txt":
		return true
	}
	return false
}

// inRoot reads a file of a directory.
func (r *reader) inRoot(root *os.Root, name, at string) error {
	info, err := root.Stat(at)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	r.file(filepath.Join(name, filepath.FromSlash(at)), f, path.Ext(at) == ".txt")
	return nil
}

// inDirectory adds the path to an error of [os.Root], whose paths are relative.
func inDirectory(name, at string, err error) error {
	var relative *fs.PathError
	if errors.As(err, &relative) {
		err = relative.Err
	}
	return fmt.Errorf("%s: %w", filepath.Join(name, filepath.FromSlash(at)), err)
}

// file reads one file.
func (r *reader) file(name string, from io.Reader, isList bool) {
	if name != Stdin && isKustomization(filepath.ToSlash(name)) {
		r.fail(kustomization(filepath.Dir(name), filepath.Dir(name)))
		return
	}
	data, err := io.ReadAll(io.LimitReader(from, MaxFile+1))
	r.total += int64(len(data))
	switch {
	case err != nil:
		r.fail(fmt.Errorf("%s: %w", name, err))
	case len(data) > MaxFile:
		r.fail(tooLarge(name, fmt.Sprintf("the file has more than %d bytes", MaxFile)))
	case r.total > MaxTotal:
		r.fail(tooLarge(name, fmt.Sprintf("all files have more than %d bytes", MaxTotal)))
	case isList || looksLikeList(string(data)):
		r.list(name, string(data))
	default:
		r.documents(name, data)
	}
}

func tooLarge(name, message string) error {
	return InvalidInput(name+": "+message, "Name only the files that have images with -f.")
}
