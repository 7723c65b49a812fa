// Command image builds the node image: the files of all packages, with the imagepin command as its entrypoint. It has no
// shell, and nothing else. contrib/kubernetes runs it to install imagepin on nodes.
//
//	image -version VERSION -dist DIR -out DIR [-push REF] ARCH...
//
// DIR of -dist has the tarballs of the packages, which become the layers as they are. The output is one file: an OCI image
// layout (image-spec, image-layout.md) as a tar archive, with an index of all platforms. It is reproducible: the same input
// results in the same bytes on every machine. SOURCE_DATE_EPOCH is the time of the image. With -push, the image is also pushed,
// with the credentials of docker's configuration. "make image" runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	var b build
	flag.StringVar(&b.version, "version", "", "the semantic version")
	flag.StringVar(&b.dist, "dist", "", "the directory of the tarballs")
	flag.StringVar(&b.out, "out", "", "the directory to write to")
	flag.StringVar(&b.push, "push", "", "the reference to push the image to")
	flag.Parse()
	if err := b.run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// build is one run of the command.
type build struct {
	version, dist, out, push string
	created                  time.Time
}

func (b *build) run(archs []string) error {
	if b.version == "" || b.dist == "" || b.out == "" || len(archs) == 0 {
		return errors.New("-version, -dist, -out and an architecture are required")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.created = time.Unix(epoch, 0).UTC()
	index, err := b.index(archs)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	file := filepath.Join(b.out, fmt.Sprintf("imagepin-node-%s.oci.tar", b.version))
	if err := b.writeLayout(file, index); err != nil {
		return err
	}
	fmt.Printf("%s %s\n", digest, file)
	return b.pushTo(index, digest)
}

func (b *build) pushTo(index v1.ImageIndex, digest v1.Hash) error {
	if b.push == "" {
		return nil
	}
	ref, err := name.ParseReference(b.push)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(ref, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	fmt.Printf("%s@%s pushed\n", ref, digest)
	return nil
}
