package pull

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// onlyHost is an origin with one host.
type onlyHost string

func (h onlyHost) Hosts() []string             { return []string{string(h)} }
func (h onlyHost) Source(digest.Digest) string { return string(h) }

// twoHosts is an origin with the hosts a and b, of which one answers.
type twoHosts struct{ answers string }

func (h *twoHosts) Hosts() []string             { return []string{"a", "b"} }
func (h *twoHosts) Source(digest.Digest) string { return h.answers }

// sentBody is a body that counts its bytes, and fails at an offset if that is not zero.
type sentBody struct {
	*bytes.Reader
	fails int64
	bytes *int
	each  func()
}

var errLink = errors.New("the link is broken")

func (s sentBody) Read(p []byte) (int, error) {
	if at, _ := s.Seek(0, io.SeekCurrent); s.fails > 0 {
		if at >= s.fails {
			return 0, errLink
		}
		p = p[:min(int64(len(p)), s.fails-at)]
	}
	n, err := s.Reader.Read(p[:min(len(p), max(10, s.Len()/1000))])
	*s.bytes += n
	if s.each != nil {
		s.each()
	}
	return n, err
}

func (s sentBody) Close() error { return nil }

// fetchFrom fetches a blob into a repository's writes.
func fetchFrom(ctx context.Context, cs ingests, desc ocispec.Descriptor, data []byte, fails int64, each func()) (received int, _ error) {
	err := remotes.Fetch(ctx, cs, fetcherFunc(func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
		return sentBody{bytes.NewReader(data), fails, &received, each}, nil
	}), desc)
	return received, err
}

// TestBeginningOfAnotherHost lets one host send a wrong beginning of a blob. It is never the beginning of what another host sends,
// and each host continues its own.
func TestBeginningOfAnotherHost(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	data := bytes.Repeat([]byte("0123456789"), 10)
	wrong := make([]byte, len(data))
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: 100}
	hosts := &twoHosts{}
	cs := ingests{Store: n.Content, repository: "registry.example/app", origin: hosts}
	fetch := func(host string, data []byte, fails int64, want int, failed bool) {
		t.Helper()
		hosts.answers = host
		if got, err := fetchFrom(ctx, cs, desc, data, fails, nil); got != want || (err != nil) != failed {
			t.Errorf("%s: received %d bytes, %v, want %d and failed %t", host, got, err, want, failed)
		}
	}
	fetch("a", wrong, 70, 70, true)
	fetch("b", data, 80, 10+80, true) // 10 bytes say that it is another host, which has sent nothing yet
	fetch("a", wrong, 90, 20, true)   // its own
	fetch("b", data, 0, 10+20, false) // after 10 bytes it continues its own
	if !n.HasBlob(t, desc.Digest) {
		t.Error("the blob is not on the node")
	}
}

// TestHostsInTurn has a part of a blob from a host, which does not serve the rest, and always serves its beginning. The fetch ends.
func TestHostsInTurn(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	data := bytes.Repeat([]byte("0123456789"), 10)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: 100}
	hosts := &twoHosts{answers: "a"}
	cs := ingests{Store: n.Content, repository: "registry.example/app", origin: hosts}
	received, err := fetchFrom(ctx, cs, desc, data, 70, nil)
	if err == nil {
		t.Fatal("the fetch succeeded")
	}
	requests := 0
	err = remotes.Fetch(ctx, cs, fetcherFunc(func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
		return &inTurn{sentBody{bytes.NewReader(data), 0, &received, nil}, hosts, &requests}, nil
	}), desc)
	if err != nil || requests != 2 || !n.HasBlob(t, desc.Digest) {
		t.Errorf("got %v after %d requests, want the blob after 2", err, requests)
	}
}

// inTurn is a body of which host a sends the beginning, and host b the rest.
type inTurn struct {
	sentBody
	hosts    *twoHosts
	requests *int
}

func (b *inTurn) Seek(offset int64, whence int) (int64, error) {
	if *b.requests++; *b.requests > 10 {
		return 0, errors.New("too many requests")
	}
	b.hosts.answers = "a"
	if offset > 0 {
		b.hosts.answers = "b"
	}
	return b.sentBody.Seek(offset, whence)
}

// TestBytesOfTwoHostsAreNotKept lets a second host send the rest, which also fails. What both have sent is not kept.
func TestBytesOfTwoHostsAreNotKept(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	data := bytes.Repeat([]byte("0123456789"), 10)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: 100}
	hosts := &twoHosts{answers: "a"}
	cs := ingests{Store: n.Content, repository: "registry.example/app", origin: hosts}
	if _, err := fetchFrom(ctx, cs, desc, data, 80, func() { hosts.answers = "b" }); err == nil {
		t.Fatal("the fetch succeeded")
	}
	hosts.answers = "a"
	reads := 0
	if _, err := fetchFrom(ctx, cs, desc, data, 80, func() {
		if reads++; reads == 3 {
			hosts.answers = "b"
		}
	}); err == nil {
		t.Fatal("the fetch succeeded")
	}
	for _, host := range hosts.Hosts() {
		if status, err := n.Content.Status(ctx, cs.ref(host, "layer-"+desc.Digest.String())); err == nil && host == "a" {
			t.Errorf("%s: got %+v, want none", host, status)
		}
	}
}

// TestCompleteWrite finds all bytes of a blob that were not committed. A layer with the right digest is committed. Another blob, and
// a layer with another digest, is fetched.
func TestCompleteWrite(t *testing.T) {
	for name, c := range map[string]struct {
		mediaType string
		wrong     bool
		want      int
	}{
		"layer":         {ocispec.MediaTypeImageLayer, false, 0},
		"wrong layer":   {ocispec.MediaTypeImageLayer, true, 100},
		"configuration": {ocispec.MediaTypeImageConfig, false, 100},
		"manifest":      {ocispec.MediaTypeImageManifest, false, 100},
	} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			ctx, done := n.Lease(t)
			defer done()
			data := bytes.Repeat([]byte("0123456789"), 10)
			desc := ocispec.Descriptor{MediaType: c.mediaType, Digest: digest.FromBytes(data), Size: 100}
			cs := ingests{Store: n.Content, repository: "registry.example/app", origin: onlyHost("registry.example")}
			w, err := n.Content.Writer(ctx, content.WithRef(cs.ref("registry.example", remotes.MakeRefKey(ctx, desc))), content.WithDescriptor(desc))
			noError(t, err)
			sent := data
			if c.wrong {
				sent = make([]byte, len(data))
			}
			_, err = w.Write(sent)
			noError(t, err)
			noError(t, w.Close())
			got, err := fetchFrom(ctx, cs, desc, data, 0, nil)
			if err != nil || got != c.want || !n.HasBlob(t, desc.Digest) {
				t.Errorf("received %d bytes, %v, want %d and the blob", got, err, c.want)
			}
		})
	}
}

// reopened is a content store that records the offsets at which writes are opened again.
type reopened struct {
	content.Store
	blobs.Opener
	offsets []int64
}

func (r *reopened) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := r.Store.Writer(ctx, opts...)
	if err == nil {
		status, serr := w.Status()
		r.offsets, err = append(r.offsets, status.Offset), serr
	}
	return w, err
}

// TestLargeWriteIsCopied continues a write that is too large for a transaction of the metadata database, several times. containerd never
// opens it again: what has arrived is copied to a write with another name. The copy continues where it was interrupted.
func TestLargeWriteIsCopied(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	local := blobs.WithLocalFiles(n.ContentDir, n.Content)
	store := &reopened{Store: local, Opener: local.(blobs.Opener)}
	cs := ingests{Store: store, repository: "registry.example/app", origin: onlyHost("registry.example")}
	data := bytes.Repeat([]byte("0123456789abcdef"), (maxReopened+4*mib)/16)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(data), Size: int64(len(data))}
	for i, fails := range []int64{maxReopened + mib, maxReopened + 2*mib, maxReopened + 3*mib, 0} {
		want := mib
		if i == 0 {
			want = maxReopened + mib
		}
		if i == 2 { // as if the process was killed during the copy
			w, err := n.Content.Writer(ctx, content.WithRef(cs.ref("registry.example", "layer-"+desc.Digest.String())), content.WithDescriptor(desc))
			noError(t, err)
			if status, err := w.Status(); err != nil || status.Offset > 0 {
				t.Fatalf("got %+v, %v, want that the first write was deleted", status, err)
			}
			_, err = w.Write(make([]byte, 100))
			noError(t, err)
			noError(t, w.Close())
		}
		if got, err := fetchFrom(ctx, cs, desc, data, fails, nil); got != want || (err != nil) != (fails > 0) {
			t.Fatalf("received %d bytes, %v, want %d", got, err, want)
		}
	}
	if !n.HasBlob(t, desc.Digest) {
		t.Error("the blob is not on the node")
	}
	for _, offset := range store.offsets {
		if offset != 0 {
			t.Errorf("containerd opened a write of %d bytes again", offset)
		}
	}
	if all, err := n.Content.ListStatuses(ctx); err != nil || len(all) > 0 {
		t.Errorf("got writes %+v, %v, want none", all, err)
	}
}
