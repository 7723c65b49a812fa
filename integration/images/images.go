// Package images builds the container images of the integration tests and of the demo. It downloads nothing: an image
// contains a small static Go program and the files that a test adds.
//
// Images are go-containerregistry's [v1.Image] and [v1.ImageIndex]. They are reproducible: on one machine, the same
// options always result in the same digest. Only the config of an image has its platform. The program in it is always
// for this machine (see [App]).
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// FactsEnv is the environment variable of an [App] image with the facts that it prints.
const FactsEnv = "IMAGEPIN_FACTS"

// Compression is how layers are compressed.
type Compression string

// The compressions of layers.
const (
	Gzip         Compression = "gzip"
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// Format is the family of media types of an image or index.
type Format string

// The formats of images and indexes.
const (
	OCI    Format = "oci"
	Docker Format = "docker" // Docker schema 2, and manifest lists
)

// Files are the files of one layer by absolute path.
type Files map[string][]byte

// Random is a layer of files with random content, which does not compress.
type Random struct {
	Files int    // number of files; 0 means 1
	Size  int64  // total size of the files in bytes
	Seed  uint64 // different seeds result in different content
	// Zero fills the files with zeros instead, so that the layer is large when unpacked and small to fetch.
	Zero bool
}

// Options are the options of an image. The zero value means this machine's platform, gzip layers and OCI media types.
type Options struct {
	// Platform is the platform in the config, as "os/arch[/variant]" or "os(os.version)/arch". Empty means
	// [HostPlatform].
	Platform string
	// Version is printed by the program and distinguishes images of one platform. Empty means v1.
	Version string
	// User is the USER in the config.
	User string
	// Env is added to the environment in the config. Labels and Volumes are its labels and VOLUMEs.
	Env     []string
	Labels  map[string]string
	Volumes []string
	// Files adds a layer for each element. Random adds a layer for each element after these.
	Files  []Files
	Random []Random
	// SingleLayer puts the program and the facts into one layer. Otherwise all App images share the program's layer.
	SingleLayer bool
	Compression Compression
	Format      Format
	// Annotations are the annotations of the manifest.
	Annotations map[string]string
	// Created is the creation time in the config.
	Created time.Time
	// Programs compiles the program. nil means a shared default.
	Programs *Programs
}

// HostPlatform returns the default platform of images: linux on this machine's architecture.
func HostPlatform() string { return "linux/" + runtime.GOARCH }

// Facts returns what the App image of these options prints, without what depends on the container.
func (o Options) Facts() string {
	o = o.withDefaults()
	return "platform=" + o.Platform + " version=" + o.Version
}

// Line returns the line that a container of the App image of these options prints if it runs as uid.
func (o Options) Line(uid int) string {
	o = o.withDefaults()
	return fmt.Sprintf("%s rootfs=%s uid=%d", o.Facts(), o.rootfs(), uid)
}

func (o Options) rootfs() string { return o.Platform + "," + o.Version }

func (o Options) withDefaults() Options {
	if o.Platform == "" {
		o.Platform = HostPlatform()
	}
	if o.Version == "" {
		o.Version = "v1"
	}
	if o.Compression == "" {
		o.Compression = Gzip
	}
	if o.Format == "" {
		o.Format = OCI
	}
	if o.Programs == nil {
		o.Programs = defaultPrograms
	}
	return o
}

// App builds an image whose entrypoint prints one line, [Options.Line], and then waits for SIGTERM. With arguments it
// runs a command instead: cat FILE..., ls DIR..., write FILE TEXT..., exit CODE.
//
// The program runs on this machine, even if the platform in the config is another.
func App(ctx context.Context, opts Options) (v1.Image, error) {
	opts = opts.withDefaults()
	program, err := opts.Programs.App(ctx)
	if err != nil {
		return nil, err
	}
	facts := []byte(opts.rootfs() + "\n")
	opts.Env = append([]string{FactsEnv + "=" + opts.Facts()}, opts.Env...)
	if opts.SingleLayer {
		return build(opts, "/app", nil, append([]Files{{"/app": program, "/facts": facts}}, opts.Files...))
	}
	first, err := opts.Programs.layer(opts, "/app", program)
	if err != nil {
		return nil, err
	}
	return build(opts, "/app", first, append([]Files{{"/facts": facts}}, opts.Files...))
}

// Pause builds a sandbox image.
func Pause(ctx context.Context, opts Options) (v1.Image, error) {
	opts = opts.withDefaults()
	program, err := opts.Programs.Pause(ctx)
	if err != nil {
		return nil, err
	}
	first, err := opts.Programs.layer(opts, "/pause", program)
	if err != nil {
		return nil, err
	}
	return build(opts, "/pause", first, opts.Files)
}

// PauseIndex builds an index of sandbox images for the platforms. The default is linux/amd64, arm64, s390x and this
// machine's platform.
func PauseIndex(ctx context.Context, platforms ...string) (v1.ImageIndex, error) {
	if len(platforms) == 0 {
		platforms = []string{"linux/amd64", "linux/arm64", "linux/s390x"}
		if !slices.Contains(platforms, HostPlatform()) {
			platforms = append(platforms, HostPlatform())
		}
	}
	var entries []Entry
	for _, p := range platforms {
		img, err := Pause(ctx, Options{Platform: p})
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Image: img})
	}
	return Index(OCI, entries...)
}

// AppIndex builds an index with one App image per platform. The other options of all images are opts.
func AppIndex(ctx context.Context, opts Options, platforms ...string) (v1.ImageIndex, error) {
	opts = opts.withDefaults()
	var entries []Entry
	for _, p := range platforms {
		o := opts
		o.Platform = p
		img, err := App(ctx, o)
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{Image: img})
	}
	return Index(opts.Format, entries...)
}

// ParsePlatform parses a platform in the format of [Options.Platform].
func ParsePlatform(s string) (*v1.Platform, error) {
	var p v1.Platform
	parts := strings.Split(s, "/")
	p.OS = parts[0]
	if name, rest, ok := strings.Cut(parts[0], "("); ok {
		p.OS, p.OSVersion = name, strings.TrimSuffix(rest, ")")
	}
	switch len(parts) {
	case 3:
		p.Variant = parts[2]
		fallthrough
	case 2:
		p.Architecture = parts[1]
	default:
		return nil, fmt.Errorf("platform %q is not os/arch, os/arch/variant or os(version)/arch", s)
	}
	return &p, nil
}

// build builds an image with the layers first, unless it is nil, those of files, and those of opts.Random.
func build(opts Options, entrypoint string, first v1.Layer, files []Files) (v1.Image, error) {
	platform, err := ParsePlatform(opts.Platform)
	if err != nil {
		return nil, err
	}
	manifestType, configType := types.OCIManifestSchema1, types.OCIConfigJSON
	if opts.Format == Docker {
		manifestType, configType = types.DockerManifestSchema2, types.DockerConfigJSON
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, manifestType), configType)

	var adds []mutate.Addendum
	if first != nil {
		adds = append(adds, mutate.Addendum{Layer: first, History: v1.History{CreatedBy: "imagepin test kit"}})
	}
	for _, f := range files {
		l, err := layer(opts, f)
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "imagepin test kit"}})
	}
	for _, r := range opts.Random {
		l, err := layer(opts, r.files())
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "imagepin test kit: random"}})
	}
	img, err = mutate.Append(img, adds...)
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Variant, cfg.OSVersion = platform.OS, platform.Architecture, platform.Variant, platform.OSVersion
	cfg.Created = v1.Time{Time: opts.Created}
	cfg.Config.Entrypoint = []string{entrypoint}
	cfg.Config.Env = append([]string{"PATH=/"}, opts.Env...)
	cfg.Config.User = opts.User
	cfg.Config.Labels = maps.Clone(opts.Labels)
	for _, v := range opts.Volumes {
		if cfg.Config.Volumes == nil {
			cfg.Config.Volumes = map[string]struct{}{}
		}
		cfg.Config.Volumes[v] = struct{}{}
	}
	img, err = mutate.ConfigFile(img, cfg)
	if err != nil {
		return nil, err
	}
	if len(opts.Annotations) > 0 {
		img = mutate.Annotations(img, opts.Annotations).(v1.Image)
	}
	return img, nil
}

func (r Random) files() Files {
	n := max(r.Files, 1)
	src := rand.NewChaCha8([32]byte{byte(r.Seed), byte(r.Seed >> 8), byte(r.Seed >> 16), byte(r.Seed >> 24), byte(r.Size), byte(r.Size >> 8), byte(r.Size >> 16), byte(r.Size >> 24), byte(n)})
	files := Files{}
	for i := range n {
		size := r.Size / int64(n)
		if i == 0 {
			size += r.Size % int64(n)
		}
		b := make([]byte, size)
		if !r.Zero {
			_, _ = src.Read(b) // never fails
		}
		files[fmt.Sprintf("/random/%d/%03d/%d", r.Seed, i/1000, i)] = b
	}
	return files
}

// layer builds a layer of files.
func layer(opts Options, files Files) (v1.Layer, error) {
	raw, err := tarOf(files)
	if err != nil {
		return nil, err
	}
	return newLayer(raw, opts.Compression, opts.Format)
}

// tarOf returns a tar archive of files, with parent directories first and fixed times and owners.
func tarOf(files Files) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		name := strings.TrimPrefix(path, "/")
		for i, c := range name {
			if c != '/' || made[name[:i]] {
				continue
			}
			made[name[:i]] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[:i] + "/", Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
				return nil, err
			}
		}
		hdr := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[path])), Mode: 0o755, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(hdr); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[path]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
