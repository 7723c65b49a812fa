package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// failingMaker fails to unpack images, with an error for each reference.
type failingMaker struct {
	Maker
	errs map[string]error
}

func (m failingMaker) Unpack(_ context.Context, e imagepin.Entry, _ func(context.Context, imagepin.Entry) error) error {
	return m.errs[e.Ref]
}

// withLog returns a context whose log is written to out.
func withLog(ctx context.Context, out *bytes.Buffer) context.Context {
	l := logrus.New()
	l.SetOutput(out)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

// TestRepairOfCorruptImage repairs keys that cannot be unpacked. The delay before the next attempt grows further if all
// of them have corrupt content, because no attempt can succeed, and each unpacks the image. Its error, which contains
// text of the image, is cut in the log.
func TestRepairOfCorruptImage(t *testing.T) {
	d := newDeepNode(t)
	text := strings.Repeat("\x00", 1<<20)
	corrupt := fmt.Errorf("failed to extract layer %s: archive/tar: invalid tar header", text)
	unavailable := fmt.Errorf("dial: unexpected EOF %s: %w", text, errdefs.ErrUnavailable)
	for name, test := range map[string]struct {
		errs  []error
		again int
		want  time.Duration
	}{
		"corrupt":             {[]error{corrupt, corrupt}, 2, repairLastCorrupt},
		"one is unavailable":  {[]error{corrupt, unavailable}, 2, repairLast},
		"one is unknown":      {[]error{errors.New("disk error"), corrupt}, 2, repairLast},
		"one is another kind": {[]error{corrupt, nil}, 1, repairLastCorrupt},
	} {
		var out bytes.Buffer
		errs := make(map[string]error)
		var losses []queued
		for i, err := range test.errs {
			e := imagepin.Entry{Key: imagepin.Key{Ref: fmt.Sprintf("registry.example/corrupt:%d", i), Target: d.config.Runtimes().Default().Target}}
			errs[e.Ref] = err
			losses = append(losses, queued{Loss: health.Loss{Entry: e, Reason: "lost", Unpackable: true, Record: e.Ref}})
		}
		d.config.Maker = failingMaker{errs: errs}
		again, longest := repairAll(withLog(d.ctx, &out), losses, d.repairs.repairOne)
		if len(again) != test.again || longest != test.want {
			t.Errorf("%s: got %d to retry after %s, want %d after %s", name, len(again), longest, test.again, test.want)
		}
		for line := range strings.Lines(out.String()) {
			// The text format writes each of the repeated bytes as four.
			if len(line) > 4*imagepin.MaxLogText+1<<10 {
				t.Errorf("%s: got a line of %d bytes: %.300s", name, len(line), line)
			}
		}
	}
	if _, longest := repairAll(d.ctx, []queued{{Loss: health.Loss{Unknown: true}}}, d.repairs.repairOne); longest != repairLast {
		t.Errorf("unknown state: got %s, want %s", longest, repairLast)
	}
}

// TestAdoptionErrorIsBounded adopts an image whose manifest has a number of a megabyte, which is in the error. The log
// has a part of it.
func TestAdoptionErrorIsBounded(t *testing.T) {
	d := newDeepNode(t)
	var out bytes.Buffer
	ctx, done := d.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	manifest := blobs.Add(ocispec.MediaTypeImageManifest, []byte(`{"schemaVersion":`+strings.Repeat("9", 1<<20)+`}`))
	d.Write(ctx, t, blobs)
	if got := d.adopter.adopt(withLog(ctx, &out), images.Image{Name: badRef, Target: manifest}, newLook(d.config.Content), nil, nil); len(got) > 0 {
		t.Errorf("got entries %+v, want none", got)
	}
	if out.Len() > 4<<10 || !strings.Contains(out.String(), "bytes cut") {
		t.Errorf("got a log of %d bytes, want a cut line of at most 4 KB: %.300s", out.Len(), out.String())
	}
}
