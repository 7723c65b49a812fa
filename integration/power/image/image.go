// Package image makes images for power cuts, knows what each of their snapshots must have, and compares snapshots with that.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/imagepin/imagepin/integration/images"
)

// Image is an image with the truth about its snapshots.
type Image struct {
	v1.Image
	// ID is the image ID, and Blobs are the digests of its layers and its configuration.
	ID    string
	Blobs []string
	// Snapshots are the snapshots of its layers, the lowest first. Their names are chain IDs.
	Snapshots []Snapshot
}

// Snapshot is what a snapshot must have.
type Snapshot struct {
	Name  string
	Files Files
}

// Files are files by their path below the root.
type Files map[string]File

// File is what a file must be. A hard link is what it links to.
type File struct {
	Mode fs.FileMode // the type and the permissions
	Size int64
	Link string   // the target of a symbolic link
	Sum  [32]byte // SHA-256 of the content
}

// Options describe an image. Its content compresses to a third.
type Options struct {
	Layers int
	// Shared is the number of layers, from the lowest, that do not depend on the version.
	Shared  int
	Files   int   // in each layer
	Size    int64 // bytes of each layer, unpacked
	Version string
	// Random makes content that does not compress.
	Random bool
}

// New makes an image. Equal options make equal images. Upper layers remove and replace files of lower ones.
func New(opts Options) (*Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made := &Image{}
	files := Files{}
	var diffs []digest.Digest
	for l := range opts.Layers {
		version := opts.Version
		if l < opts.Shared {
			version = ""
		}
		raw, err := layer(opts, l, version, files)
		if err != nil {
			return nil, err
		}
		packed, err := images.Layer(raw)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, packed); err != nil {
			return nil, err
		}
		d, err := packed.Digest()
		if err != nil {
			return nil, err
		}
		diffs = append(diffs, digest.FromBytes(raw))
		made.Blobs = append(made.Blobs, d.String())
		made.Snapshots = append(made.Snapshots, Snapshot{identity.ChainID(append([]digest.Digest(nil), diffs...)).String(), maps.Clone(files)})
	}
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	if made.Image, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	id, err := made.ConfigName()
	if err != nil {
		return nil, err
	}
	made.ID = id.String()
	made.Blobs = append(made.Blobs, made.ID)
	return made, nil
}

// layer returns a tar archive, and changes the files as it does.
func layer(opts Options, l int, version string, files Files) ([]byte, error) {
	w := &writer{files: files}
	w.tar = tar.NewWriter(&w.buffer)
	seed := sha256.Sum256(fmt.Appendf(nil, "%d %s", l, version))
	rnd := rand.New(rand.NewChaCha8(seed))
	dir, randomOnceIn := fmt.Sprintf("layer%d", l), 4
	if opts.Random {
		randomOnceIn = 1
	}
	w.directory(dir, 0o755)
	for i := range opts.Files {
		if i%16 == 0 {
			w.directory(fmt.Sprintf("%s/dir%d", dir, i/16), 0o750)
		}
		// Most files are small, and a few have most of the bytes.
		u := rnd.Float64()
		size := 64 + int(9*u*u*u*u*u*u*u*u*float64(opts.Size)/float64(opts.Files))
		w.regular(fmt.Sprintf("%s/dir%d/file%d", dir, i/16, i), []fs.FileMode{0o644, 0o755, 0o600, 0o755 | fs.ModeSetuid}[i%4], images.Mixed(rnd, size, randomOnceIn))
	}
	w.directory(dir+"/tmp", 0o777|fs.ModeSticky)
	w.regular(dir+"/empty", 0o600, nil)
	w.symlink(dir+"/link", "dir0/file0")
	w.hardlink(dir+"/hard", dir+"/dir0/file0")
	if l > 0 {
		below := fmt.Sprintf("layer%d", l-1)
		// As image builders do: without these, containerd makes directories with another mode.
		w.directory(below, 0o755)
		w.directory(below+"/dir0", 0o750)
		w.directory(below+"/tmp", 0o777|fs.ModeSticky)
		w.whiteout(below + "/dir0/file1")
		w.regular(below+"/dir0/file2", 0o640, []byte("replaced by layer "+dir+version))
		w.opaque(below + "/tmp")
	}
	w.regular("version", 0o644, []byte(version))
	err := w.tar.Close()
	if w.err != nil {
		err = w.err
	}
	return w.buffer.Bytes(), err
}

// writer writes a tar archive and what it makes of the files.
type writer struct {
	buffer bytes.Buffer
	tar    *tar.Writer
	files  Files
	err    error
}

func (w *writer) header(h tar.Header, content []byte) {
	h.ModTime, h.Size = time.Unix(1700000000, 0), int64(len(content))
	err := w.tar.WriteHeader(&h)
	if err == nil {
		_, err = w.tar.Write(content)
	}
	if w.err == nil {
		w.err = err
	}
}

// tarMode returns the mode bits of an archive.
func tarMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

func (w *writer) directory(name string, mode fs.FileMode) {
	w.header(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: tarMode(mode)}, nil)
	w.files[name] = File{Mode: mode | fs.ModeDir}
}

func (w *writer) regular(name string, mode fs.FileMode, content []byte) {
	w.header(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: tarMode(mode)}, content)
	w.files[name] = File{Mode: mode, Size: int64(len(content)), Sum: sha256.Sum256(content)}
}

func (w *writer) symlink(name, target string) {
	w.header(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
	w.files[name] = File{Mode: fs.ModeSymlink | 0o777, Link: target}
}

func (w *writer) hardlink(name, target string) {
	w.header(tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: tarMode(w.files[target].Mode)}, nil)
	w.files[name] = w.files[target]
}

func (w *writer) whiteout(name string) {
	w.header(tar.Header{Typeflag: tar.TypeReg, Name: path.Dir(name) + "/.wh." + path.Base(name)}, nil)
	delete(w.files, name)
}

// opaque hides what lower layers have in a directory.
func (w *writer) opaque(dir string) {
	w.header(tar.Header{Typeflag: tar.TypeReg, Name: dir + "/.wh..wh..opq"}, nil)
	maps.DeleteFunc(w.files, func(name string, _ File) bool { return strings.HasPrefix(name, dir+"/") })
}
