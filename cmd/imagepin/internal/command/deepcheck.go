package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// unlimited means no limit in requests to the control service.
const unlimited = -1

// rateOf returns the maximum read rate of a deep check, in bytes per second.
func rateOf(cmd *cli.Command) (int64, error) {
	if cmd.IsSet("rate") && !cmd.Bool("deep") {
		return 0, fmt.Errorf("--rate requires --deep")
	}
	rate, err := sizeOf(cmd, "rate", "100MiB")
	if err == nil && rate == 0 {
		rate = unlimited
	}
	return rate, err
}

// deepCheck runs a deep check and shows its progress on standard error.
func (a *app) deepCheck(ctx context.Context, c api.ControlClient, r *api.DeepCheckRequest) (*api.CheckResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream if printing failed
	stream, err := c.DeepCheck(ctx, r)
	if err != nil {
		return nil, err
	}
	show := a.checkProgress()
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errors.New("containerd ended the check without a result")
		}
		if err != nil {
			return nil, err
		}
		if result := message.GetResult(); result != nil {
			return result, nil
		}
		if err := show(message.GetProgress()); err != nil {
			return nil, err
		}
	}
}

// checkProgress returns the function that shows the progress of a deep check.
func (a *app) checkProgress() func(*api.DeepCheckProgress) error {
	if t, ok := animated(a.Err); ok {
		width := func() int { w, _ := terminalSize(t); return w }
		return (&checkBar{w: a.Err, now: a.now, width: width, color: os.Getenv(noColor) == ""}).show
	}
	return (&checkLines{w: a.Err}).show
}

// checkLines is the progress without a terminal: one line for each tenth.
type checkLines struct {
	w     io.Writer
	last  string
	tenth int64
}

func (p *checkLines) show(now *api.DeepCheckProgress) error {
	line := progressLine(now)
	tenth := int64(-1)
	if total := now.GetBytesTotal(); total > 0 {
		tenth = 10 * now.GetBytes() / total
	}
	if tenth == p.tenth && now.GetFindings() == 0 || line == p.last {
		return nil
	}
	p.last, p.tenth = line, tenth
	_, err := fmt.Fprintln(p.w, line)
	return err
}

// checkBar is the progress on a terminal: two lines that are redrawn, what is checked, and a bar with the rate of reading
// and the remaining time.
type checkBar struct {
	w     io.Writer
	now   func() time.Time
	width func() int
	color bool
	start time.Time // of reading
	ended time.Time // of reading; zero before
	drawn int       // number of lines to overwrite
}

// figuresWidth is the width of the figures after the bar: " 100%  elapsed: 100.0s  100.0 MiB/s  ETA 1m40s".
const figuresWidth = 47

func (p *checkBar) show(now *api.DeepCheckProgress) error {
	at := p.now()
	if p.start.IsZero() {
		p.start = at
	}
	done, all := now.GetBytes(), now.GetBytesTotal()
	if done >= all && all > 0 && p.ended.IsZero() {
		p.ended = at // the time for snapshots and repairs is not part of the rate
	}
	reading := at
	if !p.ended.IsZero() {
		reading = p.ended
	}
	part := 1.0
	if all > 0 {
		part = min(float64(done)/float64(all), 1)
	}
	width := p.width()
	figures := fmt.Sprintf(" %3.0f%%  elapsed: %.1fs", 100*part, at.Sub(p.start).Seconds()) + rateOfBytes(done, all, reading.Sub(p.start))
	barWidth := min(max(width-figuresWidth, minBar), maxBar)
	picture := strings.Repeat(clearLine, p.drawn) + cut(progressLine(now), width) + "\n" + barOf(part, barWidth, p.color) + cut(figures, max(width-barWidth, 1)) + "\n"
	p.drawn = 2
	_, err := io.WriteString(p.w, picture)
	return err
}

func progressLine(p *api.DeepCheckProgress) string {
	line := fmt.Sprintf("read %d of %d blobs, %s of %s; %d of %d snapshots",
		p.GetBlobs(), p.GetBlobsTotal(), bytesText(p.GetBytes()), bytesText(p.GetBytesTotal()),
		p.GetSnapshots(), p.GetSnapshotsTotal())
	if p.GetFindings() > 0 {
		line += fmt.Sprintf("; %d differ, %d processed", p.GetFindings(), p.GetProcessed())
	}
	return line
}
