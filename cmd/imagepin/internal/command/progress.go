package command

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/console"
	"github.com/containerd/containerd/v2/core/images"
	ctdprogress "github.com/containerd/containerd/v2/pkg/progress"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// redrawEvery is how often bars are drawn, as ctr does.
const redrawEvery = 100 * time.Millisecond

// progress shows how far a pull is.
type progress interface {
	// update takes what has changed.
	update([]*api.Progress) error
	// redraw shows how it stands now, where that is not shown already.
	redraw() error
}

func newProgress(w io.Writer, ref string, now func() time.Time) progress {
	b := newBlobs(ref)
	if t, ok := terminal(w); ok {
		return &bars{blobs: b, w: w, size: func() (int, int) { return terminalSize(t) }, now: now, start: now()}
	}
	return &lines{blobs: b, w: w}
}

// terminalSize gives columns and rows, the usual ones where it has none.
func terminalSize(t console.Console) (width, height int) {
	size, err := t.Size()
	if err != nil || size.Width == 0 || size.Height == 0 {
		return 80, 24
	}
	return int(size.Width), int(size.Height)
}

// finishedEvents are those of containerd's transfer service after which, for
// now, nothing is being done to a blob.
var finishedEvents = []string{"already exists", "complete", "extracted"}

// blob is how far one blob is.
type blob struct {
	name          string
	event         string
	offset, total int64
}

func (b *blob) finished() bool { return slices.Contains(finishedEvents, b.event) }

// part is how much of it is done, 0 to 1.
func (b *blob) part() float64 {
	switch {
	case b.finished():
		return 1
	case b.total > 0:
		return float64(b.offset) / float64(b.total)
	}
	return 0
}

// headline says what happened to it last. Some events of an image name it.
func (b *blob) headline() string {
	if strings.Contains(b.event, b.name) {
		return b.event
	}
	return b.name + ": " + b.event
}

// blobs are the blobs of a pull, in the order in which they were heard of, and
// the image as a whole.
type blobs struct {
	image    *blob
	order    []*blob
	byDigest map[string]*blob
}

func newBlobs(ref string) blobs {
	return blobs{image: &blob{name: ref}, byDigest: make(map[string]*blob)}
}

// apply notes a change and tells whether it is more than a number of bytes.
func (bs *blobs) apply(p *api.Progress) (b *blob, isNew bool) {
	b = bs.get(p)
	isNew = b.event != p.GetEvent()
	b.event, b.offset = p.GetEvent(), p.GetOffset()
	if p.GetTotal() > 0 {
		b.total = p.GetTotal()
	}
	return b, isNew
}

func (bs *blobs) get(p *api.Progress) *blob {
	if p.GetDigest() == "" {
		return bs.image
	}
	b, ok := bs.byDigest[p.GetDigest()]
	if !ok {
		b = &blob{name: kind(p.GetMediaType()) + " " + short(p.GetDigest())}
		bs.byDigest[p.GetDigest()] = b
		bs.order = append(bs.order, b)
	}
	return b
}

func kind(mediaType string) string {
	switch {
	case images.IsIndexType(mediaType):
		return "index"
	case images.IsManifestType(mediaType):
		return "manifest"
	case images.IsConfigType(mediaType):
		return "config"
	case images.IsLayerType(mediaType):
		return "layer"
	}
	return "blob"
}

// lines is progress for what is not a terminal: a line for each thing that
// happens, none for bytes.
type lines struct {
	blobs
	w io.Writer
}

func (l *lines) update(changes []*api.Progress) error {
	for _, p := range changes {
		b, isNew := l.apply(p)
		if !isNew {
			continue
		}
		line := b.headline()
		if b.total > 0 && !b.finished() {
			line += " " + ctdprogress.Bytes(b.total).String()
		}
		if _, err := fmt.Fprintln(l.w, line); err != nil {
			return err
		}
	}
	return nil
}

func (l *lines) redraw() error { return nil }

// bars is progress for a terminal: a bar for each blob, drawn over the last.
type bars struct {
	blobs
	w     io.Writer
	size  func() (width, height int)
	now   func() time.Time
	start time.Time
	drawn int // lines that the next picture replaces
}

func (b *bars) update(changes []*api.Progress) error {
	for _, p := range changes {
		b.apply(p)
	}
	return nil
}

const (
	clearLine      = "\x1b[1A\x1b[2K\r"
	nameWidth      = 22 // "manifest 0123456789ab:"
	eventWidth     = 14 // "already exists"
	sizesWidth     = 19 // "100.0 MiB/100.0 MiB"
	minBar, maxBar = 10, 40
)

// redraw replaces the last picture. Unlike containerd's progress.Writer, which
// counts the lines that wrap at the width of standard input, it makes lines that
// do not wrap: standard input may be where a password came from.
func (b *bars) redraw() error {
	if len(b.order) == 0 && b.image.event == "" {
		return nil
	}
	width, height := b.size()
	shown := b.visible(height - 3) // with two lines around them, and the cursor's
	barWidth := min(max(width-nameWidth-eventWidth-sizesWidth-3, minBar), maxBar)
	var picture bytes.Buffer
	picture.WriteString(strings.Repeat(clearLine, b.drawn))
	fmt.Fprintln(&picture, cut(b.image.headline(), width))
	for _, blob := range shown {
		fmt.Fprintf(&picture, "%-*s %-*s %*r %s\n", nameWidth, blob.name+":", eventWidth, blob.event,
			barWidth, ctdprogress.Bar(blob.part()), sizes(blob))
	}
	fmt.Fprintf(&picture, "elapsed: %.1fs\n", b.now().Sub(b.start).Seconds())
	b.drawn = len(shown) + 2
	_, err := picture.WriteTo(b.w)
	return err
}

// visible are at most n blobs: where there are more, those that are finished
// are left out first.
func (b *bars) visible(n int) []*blob {
	n = max(n, 1)
	over := len(b.order) - n
	if over <= 0 {
		return b.order
	}
	shown := make([]*blob, 0, n)
	for _, blob := range b.order {
		if over > 0 && blob.finished() {
			over--
			continue
		}
		shown = append(shown, blob)
	}
	return shown[:min(len(shown), n)]
}

// cut leaves the beginning of a line that is too long.
func cut(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

func sizes(b *blob) string {
	if b.total == 0 || b.finished() {
		return ""
	}
	return fmt.Sprintf("%s/%s", ctdprogress.Bytes(b.offset), ctdprogress.Bytes(b.total))
}
