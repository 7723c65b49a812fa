package pull

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestDamageOfDecompressors checks that what each decompressor of containerd reports about damaged data is known as damage.
func TestDamageOfDecompressors(t *testing.T) {
	for _, printed := range []string{
		"igzip: Error invalid gzip header found for file (null)\n",
		"igzip: Error encountered while decompressing file (null)\n",
		"igzip: Error while decompressing extra concatenatedgzip files on (null)\n",
		"igzip: Error (null) does not contain a complete gzip file\n",
		"unpigz: skipping: <stdin>: corrupted -- missing trailer\n",
		"unpigz: skipping: <stdin>: corrupted -- incomplete deflate data\n",
		"unpigz: skipping: <stdin>: corrupted -- invalid deflate data (invalid block type)\n",
		"unpigz: skipping: <stdin>: corrupted -- crc32 mismatch\n",
		"unpigz: skipping: <stdin> corrupt: header crc error\n",
		"unpigz: skipping: <stdin> unrecognized format\n",
	} {
		// As containerd writes it (cmdStream in pkg/archive/compression), without its type (the diff service).
		if err := fmt.Errorf("rpc error: code = Unknown desc = failed to extract layer: exit status 1: %s", printed); !IsCorrupt(err) {
			t.Errorf("not known as damage: %v", err)
		}
	}
	for _, printed := range []string{"signal: killed: ", "exit status 1: unpigz: abort: not enough memory\n", "exit status 1: igzip: Error encountered while writing to file (null)\n"} {
		if IsCorrupt(errors.New(printed)) {
			t.Errorf("known as damage: %s", printed)
		}
	}
	var gzipped, zstded bytes.Buffer
	data := bytes.Repeat([]byte("some text "), 1000)
	g := gzip.NewWriter(&gzipped)
	z, err := zstd.NewWriter(&zstded)
	noError(t, err)
	for _, w := range []io.WriteCloser{g, z} {
		_, err := w.Write(data)
		noError(t, err)
		noError(t, w.Close())
	}
	for i := range 8 * zstded.Len() {
		damaged := bytes.Clone(zstded.Bytes())
		damaged[i/8] ^= 1 << (i % 8)
		r, err := zstd.NewReader(bytes.NewReader(damaged), zstd.WithDecoderConcurrency(1))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
		}
		if err != nil && !IsCorrupt(errors.New(err.Error())) {
			t.Errorf("zstd, damage at %d: not known as damage: %v", i, err)
		}
	}
	for _, name := range []string{"igzip", "unpigz"} {
		if _, err := exec.LookPath(name); err != nil {
			continue // the list above has what it prints
		}
		for i := range gzipped.Len() {
			damaged := bytes.Clone(gzipped.Bytes())
			damaged[i] ^= 0x40
			c := exec.Command(name, "-d", "-c")
			c.Stdin = bytes.NewReader(damaged)
			var failed *exec.ExitError
			if _, err := c.Output(); errors.As(err, &failed) && !IsCorrupt(fmt.Errorf("%s: %s", err, failed.Stderr)) {
				t.Errorf("%s, damage at %d: not known as damage: %v: %s", name, i, err, failed.Stderr)
			}
		}
	}
}

// TestTransferError checks that an error of several layers is one line, has each error once, and keeps their types.
func TestTransferError(t *testing.T) {
	target := runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "native"}
	one, two := errors.New("layer one: not found"), errors.New("layer two: no space\n")
	err := newTransferError(fmt.Errorf("pull failed: %w", errors.Join(one, errors.New("aborted"), one, two, one)))
	if !errors.Is(err, two) || newTransferError(nil) != nil {
		t.Errorf("the error lost its causes: %v", err)
	}
	text := complete(err, imagepin.CannotPullImage, "registry.example/app:1", target).Error()
	if strings.Contains(text, "\n") || strings.Contains(text, "aborted") || strings.Count(text, "layer two") != 1 || strings.Count(text, "layer one") != 1 {
		t.Errorf("the error is %q", text)
	}
}
