package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/docker/go-units"
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
	rate, err := units.RAMInBytes(cmd.String("rate"))
	if err != nil || rate < 0 {
		return 0, fmt.Errorf("--rate %q must be a size such as 100MiB", cmd.String("rate"))
	}
	if rate == 0 {
		return unlimited, nil
	}
	return rate, nil
}

// deepCheck runs a deep check and shows its progress on standard error.
func (a *app) deepCheck(ctx context.Context, c api.ControlClient, r *api.DeepCheckRequest) (*api.CheckResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream if printing failed
	stream, err := c.DeepCheck(ctx, r)
	if err != nil {
		return nil, err
	}
	_, overwrite := animated(a.Err)
	shown := &checkProgress{w: a.Err, overwrite: overwrite}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errors.New("containerd ended the check without a result")
		}
		if err != nil {
			_ = shown.end() // the other error is more important
			return nil, err
		}
		if result := message.GetResult(); result != nil {
			return result, shown.end()
		}
		if err := shown.show(message.GetProgress()); err != nil {
			return nil, err
		}
	}
}

// checkProgress shows the progress of a deep check: on a terminal one line that is overwritten, otherwise one line for
// each tenth.
type checkProgress struct {
	w         io.Writer
	overwrite bool
	last      string
	tenth     int64
}

func (p *checkProgress) show(now *api.DeepCheckProgress) error {
	line := progressLine(now)
	if p.overwrite {
		p.last = line
		_, err := fmt.Fprintf(p.w, "\r\x1b[2K%s", line)
		return err
	}
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

// end finishes the line that was overwritten.
func (p *checkProgress) end() error {
	if !p.overwrite || p.last == "" {
		return nil
	}
	_, err := fmt.Fprintln(p.w)
	return err
}

func progressLine(p *api.DeepCheckProgress) string {
	line := fmt.Sprintf("read %d of %d blobs, %s of %s; %d of %d snapshots",
		p.GetBlobs(), p.GetBlobsTotal(), units.BytesSize(float64(p.GetBytes())), units.BytesSize(float64(p.GetBytesTotal())),
		p.GetSnapshots(), p.GetSnapshotsTotal())
	if p.GetFindings() > 0 {
		line += fmt.Sprintf("; %d differ, %d processed", p.GetFindings(), p.GetProcessed())
	}
	return line
}
