package download

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	encryptedType = ocispec.MediaTypeImageLayerGzip + "+encrypted"
	processorID   = "test.decrypt"
)

var errTooLate = errors.New("the key has expired")

// decrypting is a stream processor that decrypts with a key, as imgcrypt's does.
type decrypting struct {
	io.Reader
	key byte
	err error
}

func (d *decrypting) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	for i := range p[:n] {
		p[i] ^= d.key
	}
	return n, err
}

func (d *decrypting) MediaType() string { return ocispec.MediaTypeImageLayerGzip }
func (d *decrypting) Close() error      { return nil }
func (d *decrypting) Err() error        { return d.err }

// TestStreamProcessors checks that a layer is decrypted before it is decompressed, with the payload of the pull, and
// that a processor that fails at its end fails Apply.
func TestStreamProcessors(t *testing.T) {
	var late error
	diff.RegisterProcessor(diff.StaticHandler(encryptedType, func(_ context.Context, in diff.StreamProcessor, payloads map[string]typeurl.Any) (diff.StreamProcessor, error) {
		var key wrapperspb.UInt32Value
		if err := typeurl.UnmarshalTo(payloads[processorID], &key); err != nil {
			return nil, err
		}
		return &decrypting{in, byte(key.Value), late}, nil
	}))
	payload, err := typeurl.MarshalAnyToProto(wrapperspb.UInt32(42))
	noError(t, err)
	key := diff.WithPayloads(map[string]typeurl.Any{processorID: payload})
	plain := gzipLayer(t, 3, 100_000)
	encrypted := make([]byte, len(plain.blob))
	for i, b := range plain.blob {
		encrypted[i] = b ^ 42
	}
	for _, late = range []error{nil, errTooLate} {
		n := newNode(t, layerOf(encryptedType, encrypted, plain.tar))
		noError(t, n.fetch())
		applied, err := n.apply(key)
		if !errors.Is(err, late) {
			t.Fatalf("Apply failed with %v, want %v", err, late)
		}
		if late == nil && applied.Digest != plain.diffID() {
			t.Errorf("unpacked %s, want %s", applied.Digest, plain.diffID())
		}
		noError(t, n.pull.End(nil))
		n.checkStored(t)
	}
}

// configured is a stream processor for compressed layers, as an operator can configure one.
type configured struct{ diff.StreamProcessor }

func (configured) MediaType() string { return ocispec.MediaTypeImageLayer }

// TestConfiguredDecompressor checks that a stream processor that is registered later, as containerd registers those of
// its configuration, decompresses instead, and that the decompressor is not used without [Applier] and [Decompressing].
func TestConfiguredDecompressor(t *testing.T) {
	const mediaType = images.MediaTypeDockerSchema2LayerForeignGzip
	l := withType(mediaType, gzipLayer(t, 3, 1000))
	if _, ok := decompressHandler(t.Context(), mediaType); ok {
		t.Error("other appliers use the decompressor")
	}
	if _, ok := decompressHandler(withDecompressor(t.Context()), mediaType); !ok {
		t.Error("the decompressor is not used")
	}
	used := 0
	diff.RegisterProcessor(diff.StaticHandler(mediaType, func(_ context.Context, in diff.StreamProcessor, _ map[string]typeurl.Any) (diff.StreamProcessor, error) {
		used++
		r, err := gzip.NewReader(in)
		return configured{diff.NewProcessorChain("", r)}, err
	}))
	n := newNode(t, l)
	noError(t, n.fetch())
	applied, err := n.apply()
	noError(t, err)
	if used != 1 || applied.Digest != l.diffID() {
		t.Errorf("the configured stream processor was used %d times, unpacked %s, want %s", used, applied.Digest, l.diffID())
	}
	noError(t, n.pull.End(nil))
	theirs := Decompressing(n.Content, apply.NewFileSystemApplier(n.Content))
	if _, err := theirs.Apply(n.Context(t), l.desc, upperOf(t.TempDir())); err != nil || used != 2 {
		t.Errorf("the configured stream processor was used %d times, %v", used, err)
	}
}

// TestDecompressing checks that containerd's applier finds damage with the decompressor, and unpacks the same.
func TestDecompressing(t *testing.T) {
	l := gzipLayer(t, 3, 1000)
	cut := layerOf(l.desc.MediaType, l.blob[:len(l.blob)-9], l.tar)
	for _, c := range []struct {
		layer testLayer
		err   error
	}{{l, nil}, {cut, io.ErrUnexpectedEOF}} {
		n := newNode(t, c.layer)
		noError(t, n.fetch())
		noError(t, n.pull.End(nil))
		applied, err := Decompressing(n.Content, apply.NewFileSystemApplier(n.Content)).Apply(n.Context(t), c.layer.desc, upperOf(n.upper))
		if !errors.Is(err, c.err) || err == nil && applied.Digest != l.diffID() {
			t.Errorf("unpacked %s, %v; want %s, %v", applied.Digest, err, l.diffID(), c.err)
		}
	}
}

// TestPlainly checks that layers are unpacked without the decompressor if the context says so, also with a wrong media type.
func TestPlainly(t *testing.T) {
	const mediaType = images.MediaTypeDockerSchema2LayerForeign
	var own []bool
	diff.RegisterProcessor(func(ctx context.Context, of string) (diff.StreamProcessorInit, bool) {
		if of == mediaType {
			own = append(own, ctx.Value(decompressorKey{}) != nil)
		}
		return nil, false // another one decompresses
	})
	l := withType(mediaType, gzipLayer(t, 3, 1000))
	n := newNode(t, l)
	noError(t, n.fetch())
	noError(t, n.pull.End(nil))
	ctx := n.Context(t)
	for _, a := range []diff.Applier{n.applier, Decompressing(n.Content, apply.NewFileSystemApplier(n.Content))} {
		for _, plain := range []bool{false, true} {
			own = nil
			with := ctx
			if plain {
				with = Plainly(ctx)
			}
			applied, err := a.Apply(with, l.desc, upperOf(t.TempDir()))
			if err != nil || applied.Digest != l.diffID() || len(own) == 0 || slices.Contains(own, plain) {
				t.Errorf("plain %t: unpacked %s, %v, own decompressor %v", plain, applied.Digest, err, own)
			}
		}
	}
}

// TestUnknownMediaType checks that a layer without a stream processor is not unpacked.
func TestUnknownMediaType(t *testing.T) {
	l := gzipLayer(t, 1, 10)
	l.desc.MediaType = "application/vnd.oci.image.layer.v9"
	n := newNode(t, l)
	noError(t, n.fetch())
	if _, err := n.apply(); !errors.Is(err, diff.ErrNoProcessor) {
		t.Errorf("Apply failed with %v", err)
	}
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}
