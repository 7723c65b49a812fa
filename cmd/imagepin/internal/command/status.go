package command

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const statusDescription = `Shows the state of the node on one screen: versions, targets and whether their
snapshotters answer, images, pins, pulls in progress, and what is wrong.

A pull is shown with what it has received, the rate over the last 10 seconds, the
time that is left, and what it waits for.

With --watch it shows the state again every second until it is interrupted. If
the output is not a terminal, it prints one line for each change.

Exit code:
  0  no problems
  1  there are problems, or the command failed

Examples:
  imagepin status
  imagepin status --watch
  imagepin status -o json | jq -r '.problems[].message'`

func (a *app) statusCommand() *cli.Command {
	return &cli.Command{
		Name:        "status",
		Usage:       "Show the state of the node and its problems",
		Description: statusDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show the state again every second, until interrupted"},
		},
		Action: noArguments(a.status),
	}
}

func (a *app) status(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("watch") {
		return endOfWatch(a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error { return a.watchStatus(ctx, cmd, c) }))
	}
	status, err := show(ctx, a, cmd, api.ControlClient.Status, &api.StatusRequest{}, func(s style, r *api.StatusResponse) error {
		_, err := statusText(r, s.now).WriteTo(a.Out)
		return err
	})
	if err == nil && len(status.GetProblems()) > 0 {
		return exitError(exitFailed)
	}
	return err
}

// modes are the modes of imagepin as text.
var modes = map[string]string{"plugin": "in", "serve": "beside"}

// statusText formats a status for a screen.
func statusText(st *api.StatusResponse, now time.Time) *bytes.Buffer {
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "imagepin %s %s containerd %s, started %s ago\n", st.GetVersion(), modes[st.GetMode()], st.GetContainerdVersion(),
		age(now.Sub(st.GetStartedAt().AsTime())))
	// A buffer accepts all writes.
	_ = block(out, "",
		field{"Index", indexText(st.GetIndex())},
		field{"Images", fmt.Sprint(st.GetImages())},
		field{"Keys", keysText(st.GetIndex())},
		field{"Pins", pinsText(st.GetPins())},
		field{"Lookups", lookupsText(st.GetPins(), now)},
		field{"Lock", lockText(st.GetLock(), now)},
		field{"Registries", fallbacksText(st.GetRegistryFallbacks())},
		field{"Cluster", clusterText(st)},
		field{"Rate limit", statusRateText(st.GetDownloadRate())},
	)
	rows := mapped(st.GetTargets(), func(t *api.TargetStatus) []string {
		handlers := orNone(strings.Join(mapped(t.GetHandlers(), func(name string) string {
			if slices.Contains(t.GetGuestPull(), name) {
				name += " (guest_pull)"
			}
			return name
		}), ","))
		if t.GetDefault() {
			handlers += " (default)"
		}
		return []string{targetName(t.GetTarget()), handlers, fmt.Sprint(t.GetImages()), snapshotterText(t)}
	})
	fmt.Fprintln(out)
	_ = table(out, []string{"TARGET", "HANDLERS", "IMAGES", "SNAPSHOTTER"}, rows)
	for _, p := range st.GetPulls() {
		fmt.Fprintf(out, "\nPulling %s\n  for %s, started %s ago%s\n", p.GetRef(), targetName(p.GetTarget()),
			age(now.Sub(p.GetSince().AsTime())), receivedText(p))
	}
	if n := st.GetMorePulls(); n > 0 {
		fmt.Fprintf(out, "\nPulling %s more\n", count(n, "image"))
	}
	problemsText(out, st.GetProblems())
	return out
}

// lockText returns the state of the node's lock, or "" if it has none.
func lockText(l *api.LockSummary, now time.Time) string {
	if l.GetDigest() == "" {
		return ""
	}
	return fmt.Sprintf("%s, applied %s ago, %d of %s ready", short(l.GetDigest()), age(now.Sub(l.GetAppliedAt().AsTime())),
		l.GetReady(), count(l.GetImages(), "image"))
}

// indexText and pinsText return "" if imagepin is uninstalled.
func indexText(i *api.IndexStatus) string {
	if i == nil {
		return ""
	}
	if unset(i.GetListedAt()) {
		return "is being built"
	}
	took := (time.Duration(i.GetTookMs()) * time.Millisecond).String()
	text := fmt.Sprintf("listed %s in %s, %s lost", stamp(i.GetListedAt()), took, count(i.GetLost(), "key"))
	if n := i.GetPendingRepairs(); n > 0 {
		text += ", " + count(n, "repair") + " pending"
	}
	return text
}

// keysText returns how many keys pods cannot use, or "" if they can use all.
func keysText(i *api.IndexStatus) string {
	var all []string
	for _, n := range []struct {
		keys int64
		text string
	}{{i.GetDamaged(), "damaged"}, {i.GetUnused(), "unused"}, {i.GetDropped(), "dropped since the start"}} {
		if n.keys > 0 {
			all = append(all, fmt.Sprintf("%d %s", n.keys, n.text))
		}
	}
	return strings.Join(all, ", ")
}

func pinsText(p *api.PinStatus) string {
	if p == nil {
		return ""
	}
	gone := ""
	if n := p.GetGone(); n > 0 {
		gone = fmt.Sprintf(", %d gone", n)
	}
	text := fmt.Sprintf("%d, %d drifted%s, %s retained", p.GetPins(), p.GetDrifted(), gone, bytesText(p.GetRetainedBytes()))
	if limit := p.GetMaxRetainedBytes(); limit > 0 {
		text += " of " + bytesText(limit)
	}
	return text
}

func fallbacksText(n int64) string {
	if n == 0 {
		return "no fallbacks since the start"
	}
	return count(n, "fallback") + " to images on the node since the start"
}

// statusRateText returns "" if there is no limit.
func statusRateText(r *api.DownloadRate) string {
	if r.GetBytesPerSecond() == 0 && !r.GetChanged() {
		return ""
	}
	return rateText(r)
}

func clusterText(st *api.StatusResponse) string {
	if !st.GetCluster() {
		return ""
	}
	return fmt.Sprintf("pins are agreed on in the Kubernetes API, %d not claimed yet", st.GetPins().GetProvisional())
}

func snapshotterText(t *api.TargetStatus) string {
	if t.GetError() == "" {
		return "ok"
	}
	return "no answer"
}

// waits are the texts of what a pull waits for.
var waits = map[string]string{
	"registry": "waits for the registry", "rate limit": "waits for the rate limit", "unpack": "unpacking", "another pull": "waits for another pull",
}

// receivedText returns the bytes of a pull, its rate, the time that is left, and what it waits for.
func receivedText(p *api.RunningPull) string {
	var all []string
	if p.GetTotal() > 0 || p.GetReceived() > 0 {
		text := "received " + bytesText(p.GetReceived())
		if p.GetTotal() > 0 {
			text += " of " + bytesText(p.GetTotal())
		}
		all = append(all, text)
	}
	if p.GetRate() > 0 {
		all = append(all, bytesText(p.GetRate())+"/s")
	}
	if p.GetLeftSeconds() > 0 {
		all = append(all, (time.Duration(p.GetLeftSeconds())*time.Second).String()+" left")
	}
	if p.GetWaitsFor() != "" {
		all = append(all, cmp.Or(waits[p.GetWaitsFor()], "waits for "+p.GetWaitsFor()))
	}
	if len(all) == 0 {
		return ""
	}
	return "\n  " + strings.Join(all, ", ")
}

func problemsText(out *bytes.Buffer, problems []*api.Problem) {
	if len(problems) == 0 {
		fmt.Fprintln(out, "\nProblems: none")
		return
	}
	fmt.Fprintln(out, "\nProblems:")
	for _, p := range problems {
		for i, line := range strings.Split(strings.TrimSpace(p.GetMessage()+"\n"+p.GetHint()), "\n") {
			indent := "    "
			if i == 0 {
				indent = "  "
			}
			fmt.Fprintf(out, "%s%s\n", indent, printable(line))
		}
	}
}

// pullName identifies a pull in progress.
func pullName(p *api.RunningPull) string { return p.GetRef() + " for " + targetName(p.GetTarget()) }
