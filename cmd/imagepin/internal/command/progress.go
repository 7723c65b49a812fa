package command

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
	b := blobs{ref: ref, byDigest: make(map[string]*blob)}
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

// blob is how far one blob is, or the image as a whole.
type blob struct {
	name          string
	event         string
	offset, total int64
}

// finished tells whether nothing more will happen to it.
func (b *blob) finished() bool { return b.event == "done" || b.event == "exists" }

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

// blobs are the blobs of a pull, in the order in which they were heard of.
type blobs struct {
	ref      string
	order    []*blob
	byDigest map[string]*blob
}

// apply notes a change and tells whether it is more than a number of bytes.
func (bs *blobs) apply(p *api.Progress) (b *blob, isNew bool) {
	b, ok := bs.byDigest[p.GetDigest()]
	if !ok {
		b = &blob{name: bs.name(p)}
		bs.byDigest[p.GetDigest()] = b
		bs.order = append(bs.order, b)
	}
	isNew = b.event != p.GetEvent()
	b.event, b.offset = p.GetEvent(), p.GetOffset()
	if p.GetTotal() > 0 {
		b.total = p.GetTotal()
	}
	return b, isNew
}

func (bs *blobs) name(p *api.Progress) string {
	if p.GetDigest() == "" {
		return bs.ref
	}
	return kind(p.GetMediaType()) + " " + short(p.GetDigest())
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
		line := b.name + ": " + b.event
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
	clearLine         = "\x1b[1A\x1b[2K\r"
	minBar, maxBar    = 10, 40
	usualBar          = 20 // long names are cut rather than this one
	sizesWidth        = 19 // "100.0 MiB/100.0 MiB"
	minName, maxEvent = 20, 11
)

// redraw replaces the last picture. Unlike containerd's progress.Writer, which
// counts the lines that wrap at the width of standard input, it makes bars so
// short that no line wraps: standard input may be where a password came from.
func (b *bars) redraw() error {
	if len(b.order) == 0 {
		return nil
	}
	width, height := b.size()
	var picture bytes.Buffer
	picture.WriteString(strings.Repeat(clearLine, b.drawn))
	shown := b.visible(height - 2)
	nameWidth := b.nameWidth(shown, width)
	barWidth := min(max(width-nameWidth-maxEvent-sizesWidth-5, minBar), maxBar)
	tw := tabwriter.NewWriter(&picture, 0, 8, 1, ' ', 0)
	for _, blob := range shown {
		fmt.Fprintf(tw, "%s\t%-*s\t%*r\t%s\n", cut(blob.name+":", nameWidth), maxEvent, blob.event,
			barWidth, ctdprogress.Bar(blob.part()), sizes(blob))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&picture, "elapsed: %.1fs\n", b.now().Sub(b.start).Seconds())
	b.drawn = len(shown) + 1
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

func (b *bars) nameWidth(shown []*blob, width int) int {
	widest := minName
	for _, blob := range shown {
		widest = max(widest, len(blob.name)+1)
	}
	return min(widest, max(width-maxEvent-sizesWidth-usualBar-5, minName))
}

// cut leaves the end of a name, which is what tells names apart.
func cut(name string, width int) string {
	if len(name) <= width {
		return name
	}
	return "…" + name[len(name)-width+1:]
}

func sizes(b *blob) string {
	if b.total == 0 || b.finished() {
		return ""
	}
	return fmt.Sprintf("%s/%s", ctdprogress.Bytes(b.offset), ctdprogress.Bytes(b.total))
}
