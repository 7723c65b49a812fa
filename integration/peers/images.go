package peers

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/registry"
)

// platforms are those of the stand-in images. All have the programs of this machine.
var platforms = []string{"linux/amd64", "linux/arm64", "linux/arm/v7", "linux/ppc64le", "linux/s390x"}

// standIn is an image with busybox in the place of one that a suite names.
type standIn struct {
	refs    []string // "repository:tag", or "repository" for the tag latest
	files   []file   // in a layer of its own after that of busybox
	volumes []string
	user    string
	command []string
}

// file is a file of an image, or a directory if its path ends with a slash.
type file struct {
	path, content string
	uid, gid      int
}

var standIns = []standIn{
	{refs: []string{"containerd/busybox:1.36", "e2e-test-images/busybox:1.29-2"}},
	{refs: []string{"containerd/alpine:3.14.0"}, files: []file{{path: "etc/os-release", content: "NAME=\"Alpine Linux\"\n"}}},
	{
		refs: []string{"containerd/volume-copy-up:2.1", "containerd/volume-copy-up:2.2"},
		files: []file{
			{path: "test_dir/"}, {path: "test_dir/test_file", content: "test_content\n"},
			{path: "C:/"}, {path: "C:/weird_test_dir/"}, {path: "C:/weird_test_dir/weird_test_file", content: "test_content\n"},
			{path: ":colon_prefixed/"}, {path: ":colon_prefixed/colon_prefixed_file", content: "test_content\n"},
		},
		volumes: []string{"/test_dir", "C:/weird_test_dir", "/:colon_prefixed"},
	},
	{
		refs:    []string{"containerd/volume-ownership:2.1"},
		files:   []file{{path: "test_dir/", uid: 65534, gid: 65534}, {path: "large", content: large()}},
		volumes: []string{"/test_dir"},
	},
	{refs: []string{"containerd/nginx:1.27.0", "e2e-test-images/nginx:1.14-2", "e2e-test-images/httpd:2.4.39-4"}, files: marker("web"), command: webServer(80)},
	{refs: []string{critestImages + "hostnet-nginx-" + runtime.GOARCH}, files: marker("hostnet"), command: webServer(12003)},
	{refs: []string{critestImages + "test-image-latest"}, files: marker("latest")},
	{refs: []string{critestImages + "test-image-tag:test"}, files: marker("tag")},
	{refs: []string{critestImages + "test-image-tag:all"}, files: marker("all")},
	{refs: []string{critestImages + "test-image-1"}, files: marker("1")},
	{refs: []string{critestImages + "test-image-2"}, files: marker("2")},
	{refs: []string{critestImages + "test-image-3"}, files: marker("3")},
	{refs: []string{critestImages + "test-image-tags:1", critestImages + "test-image-tags:2", critestImages + "test-image-tags:3"}, files: marker("tags")},
	{refs: []string{critestImages + "test-image-user-uid"}, user: "1002"},
	{refs: []string{critestImages + "test-image-user-username"}, user: "www-data"},
	{refs: []string{critestImages + "test-image-user-uid-group"}, user: "1003:1004"},
	{refs: []string{critestImages + "test-image-user-username-group"}, user: "www-data:1004"},
	{
		refs: []string{critestImages + "test-image-predefined-group"},
		files: []file{
			{path: "etc/passwd", content: "root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n"},
			{path: "etc/group", content: "root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"},
		},
		user: "1000",
	},
}

// critestImages is the repository of critest's own images.
const critestImages = "k8s-staging-cri-tools/"

// marker returns a file that makes an image different from others.
func marker(name string) []file { return []file{{path: "stand-in", content: name + "\n"}} }

// large returns content that gzip does not make smaller. Tests count the MiB of a layer.
func large() string {
	b := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b) // never fails
	return string(b)
}

// webServer returns a command that serves a page.
func webServer(port int) []string {
	return []string{"sh", "-c", fmt.Sprintf("echo stand-in >/index.html && exec httpd -f -p %d -h /", port)}
}

// push puts all images that the suites pull into the registry.
func push(ctx context.Context, reg *registry.Registry, busybox string) error {
	for _, ref := range []string{"pause:3.10.2", "pause:3.9", "pause:3.6", "pause-amd64:3.2"} {
		var entries []images.Entry
		for _, p := range platforms {
			img, err := images.Pause(ctx, images.Options{Platform: p, Files: []images.Files{{"/stand-in": []byte(ref + " " + p)}}})
			if err != nil {
				return err
			}
			entries = append(entries, images.Entry{Image: img})
		}
		idx, err := images.Index(images.OCI, entries...)
		if err != nil {
			return err
		}
		if _, err := reg.Push(ref, idx); err != nil {
			return err
		}
	}
	base, err := busyboxLayer(busybox)
	if err != nil {
		return err
	}
	for _, s := range standIns {
		idx, err := s.index(base)
		if err != nil {
			return err
		}
		for _, ref := range s.refs {
			if !strings.Contains(ref, ":") {
				ref += ":latest"
			}
			if _, err := reg.Push(ref, idx); err != nil {
				return fmt.Errorf("%s: %w", ref, err)
			}
		}
	}
	return nil
}

// busyboxLayer returns a layer with busybox, a link for each of its commands, and the files of a root directory.
func busyboxLayer(busybox string) (v1.Layer, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "usr/bin", "usr/sbin", "var", "var/log"} {
		if err := add(w, file{path: dir + "/"}, 0o755); err != nil {
			return nil, err
		}
	}
	if err := add(w, file{path: "tmp/"}, 0o1777); err != nil {
		return nil, err
	}
	if err := add(w, file{path: "bin/busybox", content: string(program)}, 0o755); err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "/bin/busybox", Mode: 0o777}); err != nil {
				return nil, err
			}
		}
	}
	for path, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nwww-data:x:33:33:www-data:/var/www:/bin/false\n" +
			"nobody:x:65534:65534:nobody:/home:/bin/false\n",
		"etc/group":      "root:x:0:\ndaemon:x:1:\nwheel:x:10:root\nwww-data:x:33:\nnogroup:x:65534:\n",
		"etc/os-release": "ID=busybox\n",
	} {
		if err := add(w, file{path: path, content: content}, 0o644); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return images.Layer(b.Bytes())
}

func add(w *tar.Writer, f file, mode int64) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: mode, Uid: f.uid, Gid: f.gid, Size: int64(len(f.content))}
	if strings.HasSuffix(f.path, "/") {
		h.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write([]byte(f.content))
	return err
}

func (s standIn) index(base v1.Layer) (v1.ImageIndex, error) {
	var entries []images.Entry
	for _, name := range platforms {
		// Tests expect that platforms share not all layers.
		own, err := fileLayer(append(slices.Clone(s.files), file{path: "platform", content: name + "\n"}))
		if err != nil {
			return nil, err
		}
		img, err := s.image(name, base, own)
		if err != nil {
			return nil, err
		}
		entries = append(entries, images.Entry{Image: img})
	}
	return images.Index(images.OCI, entries...)
}

func fileLayer(files []file) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		mode := int64(0o644)
		if strings.HasSuffix(f.path, "/") {
			mode = 0o755
		}
		if err := add(w, f, mode); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return images.Layer(b.Bytes())
}

func (s standIn) image(platform string, layers ...v1.Layer) (v1.Image, error) {
	p, err := images.ParsePlatform(platform)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "imagepin test kit"}}); err != nil {
			return nil, err
		}
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Variant = p.OS, p.Architecture, p.Variant
	cfg.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cfg.Config.Cmd = s.command
	if s.command == nil {
		cfg.Config.Cmd = []string{"sh"}
	}
	cfg.Config.User = s.user
	if len(s.volumes) > 0 {
		cfg.Config.Volumes = map[string]struct{}{}
		for _, v := range s.volumes {
			cfg.Config.Volumes[v] = struct{}{}
		}
	}
	return mutate.ConfigFile(img, cfg)
}
