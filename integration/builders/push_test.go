package builders

import (
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
)

// build builds the images that buildah and podman push: app, podman-app, and the lists all and all-artifact, with a foreign
// platform first.
func (w *workshop) build() {
	w.t.Helper()
	own, foreign := images.Options{}, images.Options{Platform: foreignPlatform}
	w.context("own", own)
	w.context("foreign", foreign)
	w.write("text.txt", "text\n")
	w.run("buildah", "build", "--isolation", "chroot", "--tag", "app", "/var/shared/own")
	w.run("podman", "build", "--isolation", "chroot", "--tag", "podman-app", "/var/shared/own")
	w.run("buildah", "manifest", "create", "all")
	for _, p := range []struct{ dir, platform string }{{"foreign", foreignPlatform}, {"own", images.HostPlatform()}} {
		w.run("buildah", "build", "--isolation", "chroot", "--platform", p.platform, "--manifest", "all", "/var/shared/"+p.dir)
	}
	w.run("buildah", "manifest", "create", "all-artifact", "app")
	w.run("buildah", "manifest", "add", "--artifact", "--artifact-type", "text/plain", "all-artifact", "/var/shared/text.txt")
}

// push pushes what build has built, with buildah or podman.
func push(image string, args ...string) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		args := append([]string{"push", "--tls-verify=false", "--digestfile", "/var/shared/digest"}, args...)
		if strings.HasPrefix(image, "all") {
			args = append([]string{"manifest"}, append(args, "--all")...)
		}
		w.run(f.builder, append(args, image, "docker://"+w.ref(f))...)
		return w.read("digest")
	}
}

// skopeo copies an image that is in docker-registry.
func skopeo(from string, args ...string) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		args := append([]string{"copy", "--src-tls-verify=false", "--dest-tls-verify=false", "--digestfile", "/var/shared/digest"}, args...)
		w.run("skopeo", append(args, "docker://"+w.host+"/"+from+":v1", "docker://"+w.ref(f))...)
		return w.read("digest")
	}
}

func skopeoUncompressed(w *workshop, f form) string {
	w.t.Helper()
	w.run("skopeo", "copy", "--dest-oci-accept-uncompressed-layers", "containers-storage:[vfs@/var/shared/storage+/var/shared/run]localhost/app", "oci:/var/shared/plain:v1")
	// Without --preserve-digests, skopeo compresses what it writes to a registry.
	w.run("skopeo", "copy", "--preserve-digests", "--dest-tls-verify=false", "--digestfile", "/var/shared/digest", "oci:/var/shared/plain:v1", "docker://"+w.ref(f))
	return w.read("digest")
}

// orasDigest runs a command of oras that writes a manifest, and returns its digest.
func (w *workshop) orasDigest(args ...string) string {
	w.t.Helper()
	out := w.oras(args...)
	_, digest, _ := strings.Cut(out, "\nDigest: ")
	digest, _, found := strings.Cut(digest, "\n")
	if !found {
		w.t.Fatalf("oras %s: no digest:\n%s", strings.Join(args, " "), out)
	}
	return digest
}

// orasImage pushes the configuration and the layers of an image as files.
func orasImage(w *workshop, f form) string {
	w.t.Helper()
	return w.orasPlatform(w.ref(f), images.HostPlatform())
}

func (w *workshop) orasPlatform(ref, platform string) string {
	w.t.Helper()
	img := testkit.App(w.t, images.Options{Platform: platform})
	config, err := img.RawConfigFile()
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("config.json", string(config))
	args := []string{"push", "--plain-http", "--config", "config.json:" + string(types.OCIConfigJSON), ref}
	layers, err := img.Layers()
	if err != nil {
		w.t.Fatal(err)
	}
	for i, l := range layers {
		file := fmt.Sprintf("layer-%d.tar.gz", i)
		w.write(file, string(packed(w, l)))
		args = append(args, file+":"+string(types.OCILayer))
	}
	return w.orasDigest(args...)
}

func packed(w *workshop, l v1.Layer) []byte {
	w.t.Helper()
	r, err := l.Compressed()
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// orasIndex makes an index of images that oras has pushed.
func orasIndex(w *workshop, f form) string {
	w.t.Helper()
	repo := w.host + "/" + f.name
	args := []string{"manifest", "index", "create", "--plain-http", w.ref(f)}
	for i, platform := range []string{foreignPlatform, images.HostPlatform()} {
		tag := fmt.Sprintf("image-%d", i)
		w.orasPlatform(repo+":"+tag, platform)
		args = append(args, tag)
	}
	return w.orasDigest(args...)
}

// orasAttached pushes an image, and attaches a file to it.
func orasAttached(w *workshop, f form) string {
	w.t.Helper()
	digest := orasImage(w, f)
	w.oras("attach", "--plain-http", "--artifact-type", "text/plain", w.ref(f), "text.txt:text/plain")
	return digest
}

// pushTo pushes an image or an index to go-containerregistry's registry.
func (w *workshop) pushTo(f form, content remote.Taggable) string {
	w.t.Helper()
	return testkit.Push(w.t, w.ggcr, f.name+":v1", content).String()
}

func image(opts images.Options) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		return w.pushTo(f, testkit.App(w.t, opts))
	}
}

func index(format images.Format) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		return w.pushTo(f, testkit.AppIndex(w.t, images.Options{Format: format}, foreignPlatform, images.HostPlatform()))
	}
}

func converted(format images.Format, convert func(v1.Image) (v1.Image, error)) func(*workshop, form) string {
	return func(w *workshop, f form) string {
		w.t.Helper()
		img, err := convert(testkit.App(w.t, images.Options{Format: format}))
		if err != nil {
			w.t.Fatal(err)
		}
		return w.pushTo(f, img)
	}
}

// layered compresses the layers with go-containerregistry.
func layered(format images.Format, opts ...tarball.LayerOption) func(*workshop, form) string {
	return converted(format, func(img v1.Image) (v1.Image, error) {
		return images.Convert(img, func(l v1.Layer) (mutate.Addendum, error) {
			layer, err := tarball.LayerFromOpener(l.Uncompressed, opts...)
			return mutate.Addendum{Layer: layer}, err
		})
	})
}
