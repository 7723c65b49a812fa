package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const limitRateDescription = `Limits what the node receives from registries, in bytes per second, also for
pulls that run. 0 means no limit. The limit is kept over a restart; --reset
returns to max_download_rate of the configuration. Without RATE it shows the
limit.

Examples:
  imagepin limit-rate
  imagepin limit-rate 10MiB
  imagepin limit-rate --reset`

func (a *app) limitRateCommand() *cli.Command {
	return &cli.Command{
		Name:        "limit-rate",
		Usage:       "Limit what the node receives from registries",
		ArgsUsage:   "[RATE]",
		Description: limitRateDescription,
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "reset", Usage: "use the limit of the configuration"}},
		Action:      a.limitRate,
	}
}

func (a *app) limitRate(ctx context.Context, cmd *cli.Command) error {
	q := &api.LimitRateRequest{Reset_: cmd.Bool("reset")}
	args, err := arguments(cmd, "[RATE]")
	if err != nil {
		return err
	}
	if len(args) > 0 && args[0] != "" {
		n, err := parseSize("RATE", args[0], "10MiB")
		switch {
		case err != nil:
			return err
		case q.Reset_:
			return errors.New("RATE and --reset cannot be used together")
		}
		q.BytesPerSecond = &n
	}
	_, err = show(ctx, a, cmd, api.ControlClient.LimitRate, q, func(_ style, r *api.DownloadRate) error {
		_, err := fmt.Fprintln(a.Out, rateText(r))
		return err
	})
	return err
}

// rateText returns the limit of what the node receives.
func rateText(r *api.DownloadRate) string {
	text := limitText(r.GetBytesPerSecond())
	if r.GetChanged() {
		text += " (configured: " + limitText(r.GetConfigured()) + ")"
	}
	return text
}

func limitText(n int64) string {
	if n == 0 {
		return "no limit"
	}
	return bytesText(n) + "/s"
}
