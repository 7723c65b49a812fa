package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/console"
	"github.com/containerd/containerd/v2/core/images"
	ctdprogress "github.com/containerd/containerd/v2/pkg/progress"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// redrawEvery is the interval for drawing bars, as in ctr.
const redrawEvery = 100 * time.Millisecond

// progress shows the progress of a pull.
type progress interface {
	// update applies changes.
	update([]*api.Progress) error
	// redraw shows the current state, if update does not.
	redraw() error
}

func newProgress(w io.Writer, ref string, now func() time.Time) progress {
	b := newBlobs(ref)
	if t, ok := animated(w); ok {
		b.now = now
		return &bars{blobs: b, w: w, size: func() (int, int) { return terminalSize(t) }, color: os.Getenv(noColor) == "", start: now()}
	}
	return &lines{blobs: b, w: w}
}

// noColor is the environment variable that switches colors off if it is not empty, see https://no-color.org.
const noColor = "NO_COLOR"

// animated returns w as a terminal on which lines can be overwritten, if it is one.
func animated(w any) (console.Console, bool) {
	if os.Getenv("TERM") == "dumb" {
		return nil, false
	}
	return terminal(w)
}

// terminalSize returns columns and rows, with defaults if the terminal has none.
func terminalSize(t console.Console) (width, height int) {
	size, err := t.Size()
	if err != nil || size.Width == 0 || size.Height == 0 {
		return 80, 24
	}
	return int(size.Width), int(size.Height)
}

// finishedEvents are the events of containerd's transfer service after which a blob is idle for now.
var finishedEvents = []string{eventExists, "complete", "extracted"}

// Events of containerd's transfer service.
const (
	eventExists      = "already exists"
	eventDownloading = "downloading"
	eventExtracting  = "extracting"
	eventWaiting     = "waiting"
)

// blob is the progress of one blob.
type blob struct {
	name          string
	event         string
	since         time.Time // of the event
	offset, total int64     // bytes
	present       bool      // on the node before the pull
}

func (b *blob) finished() bool { return slices.Contains(finishedEvents, b.event) }

// part returns the completed part, 0 to 1.
func (b *blob) part() float64 {
	switch {
	case b.finished():
		return 1
	case b.total > 0:
		return float64(b.offset) / float64(b.total)
	}
	return 0
}

// headline describes the last event. Some events of an image contain its name.
func (b *blob) headline() string {
	if strings.Contains(b.event, b.name) {
		return printable(b.event)
	}
	return printable(b.name + ": " + b.event)
}

// blobs has the blobs of a pull in the order of their first event, and the image as a whole.
type blobs struct {
	image    *blob
	order    []*blob
	byDigest map[string]*blob
	now      func() time.Time
}

func newBlobs(ref string) blobs {
	return blobs{image: &blob{name: ref}, byDigest: make(map[string]*blob), now: time.Now}
}

// apply applies a change. isNew reports whether the event changed, and not only the number of bytes.
func (bs *blobs) apply(p *api.Progress) (b *blob, isNew bool) {
	b = bs.get(p)
	if isNew = b.event != p.GetEvent(); isNew {
		b.since = bs.now()
	}
	b.present = b.present || p.GetEvent() == eventExists
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

// lines is the progress without a terminal: one line for each event, except for bytes.
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
			line += " " + bytesText(b.total)
		}
		if _, err := fmt.Fprintln(l.w, line); err != nil {
			return err
		}
	}
	return nil
}

func (l *lines) redraw() error { return nil }

// bars is the progress on a terminal: one bar for each blob, redrawn in place.
type bars struct {
	blobs
	w     io.Writer
	size  func() (width, height int)
	color bool
	start time.Time
	ended time.Time // when all bytes had arrived; zero before
	drawn int       // number of lines to overwrite
}

func (b *bars) update(changes []*api.Progress) error {
	for _, p := range changes {
		b.apply(p)
	}
	switch done, all := b.downloaded(); {
	case done < all:
		b.ended = time.Time{}
	case b.ended.IsZero():
		b.ended = b.now()
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

// redraw replaces what was drawn last. Its lines do not wrap. containerd's progress.Writer computes wrapped lines from
// the width of standard input, but standard input may have been used for a password.
func (b *bars) redraw() error {
	if len(b.order) == 0 && b.image.event == "" {
		return nil
	}
	width, height := b.size()
	shown := b.visible(height - 3) // without the two lines around the bars, and the line of the cursor
	barWidth := min(max(width-nameWidth-eventWidth-sizesWidth-3, minBar), maxBar)
	var picture bytes.Buffer
	picture.WriteString(strings.Repeat(clearLine, b.drawn))
	fmt.Fprintln(&picture, cut(b.image.headline(), width))
	for _, blob := range shown {
		fmt.Fprintf(&picture, "%-*s %-*s %s %s\n", nameWidth, blob.name+":", eventWidth, blob.event,
			b.bar(blob, barWidth), b.detail(blob))
	}
	fmt.Fprintln(&picture, cut(b.total(), width))
	b.drawn = len(shown) + 2
	_, err := picture.WriteTo(b.w)
	return err
}

// visible returns at most n blobs. If there are more, it omits finished blobs first.
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

// cut truncates a line that is too long.
func cut(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

// bar returns the bar of a blob. containerd reports no offset while it extracts a layer: a part of the bar moves.
func (b *bars) bar(blob *blob, width int) string {
	if blob.event == eventExtracting {
		return movingBar(b.now().Sub(blob.since), width)
	}
	return barOf(blob.part(), width, b.color)
}

// barOf returns a bar for the completed part, 0 to 1.
func barOf(part float64, width int, color bool) string {
	bar := fmt.Sprintf("%*r", width, ctdprogress.Bar(part))
	if color {
		return bar
	}
	return strings.NewReplacer("\x1b[32m", "", "\x1b[0m", "").Replace(bar)
}

// movingBar returns a bar with a mark that moves by one character each time it is redrawn.
func movingBar(elapsed time.Duration, width int) string {
	const mark = "+++"
	places := width - 2 - len(mark) + 1
	left := int(elapsed/redrawEvery) % places
	return "|" + strings.Repeat("-", left) + mark + strings.Repeat("-", places-1-left) + "|"
}

// detail returns how much of a blob is done: bytes, or for how long it has been extracted.
func (b *bars) detail(blob *blob) string {
	switch {
	case blob.event == eventExtracting:
		return fmt.Sprintf("%.1fs", b.now().Sub(blob.since).Seconds())
	case blob.total == 0 || blob.finished():
		return ""
	}
	return fmt.Sprintf("%s/%s", bytesText(blob.offset), bytesText(blob.total))
}

// total returns the last line: the elapsed time, and the bytes that are downloaded, their average rate, and the time
// that the rest needs at this rate.
func (b *bars) total() string {
	elapsed := b.now().Sub(b.start)
	line := fmt.Sprintf("elapsed: %.1fs", elapsed.Seconds())
	done, all := b.downloaded()
	if all == 0 {
		return line
	}
	line += fmt.Sprintf("  total: %s/%s", bytesText(done), bytesText(all))
	if !b.ended.IsZero() { // the time for unpacking is not part of the rate
		elapsed = b.ended.Sub(b.start)
	}
	return line + rateOfBytes(done, all, elapsed)
}

// rateOfBytes returns the average rate at which done of all bytes were handled, and the time that the rest needs at this
// rate, each after two spaces.
func rateOfBytes(done, all int64, elapsed time.Duration) string {
	if done == 0 || elapsed <= 0 {
		return ""
	}
	text := "  " + bytesText(int64(float64(done)/elapsed.Seconds())) + "/s"
	if done >= all {
		return text
	}
	rest := time.Duration(float64(elapsed) * float64(all-done) / float64(done))
	return text + fmt.Sprintf("  ETA %s", max(rest.Round(time.Second), time.Second))
}

// downloaded returns the bytes of the blobs that were not on the node: those that have arrived, and all.
func (b *bars) downloaded() (done, all int64) {
	for _, blob := range b.order {
		if blob.present {
			continue
		}
		all += blob.total
		if blob.event == eventDownloading || blob.event == eventWaiting {
			done += blob.offset
		} else {
			done += blob.total
		}
	}
	return done, all
}
