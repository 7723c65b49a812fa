package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// maxReason is how much of the error of a snapshotter fits a table on a terminal, in characters.
const maxReason = 40

const duDescription = `Shows the disk space of images. UNIQUE is what only this image needs, and "imagepin
rm" frees; SHARED is what also other images need, or pins that retain content.
Both are the sum of CONTENT, the compressed layers, manifests and configurations
in the content store, and SNAPSHOTS, the unpacked layers in all snapshotters.
CONTENT has no layers if containerd discards unpacked layers.

The second table has the totals, in which shared layers count once. "other" are
content and snapshots of no image: a pin retains them, or containerd has not
collected them yet. "of failed pulls" is what the next pull does not fetch again;
it expires after a day, and "imagepin prune" frees it. Snapshots of containers do
not count.

A snapshotter that does not answer within two seconds is listed with an error, and
its snapshots do not count.

"-o wide" adds IMAGE ID, the digest of the configuration, and the size in each
snapshotter.

Exit code:
  0  all snapshotters answered
  1  a snapshotter did not answer, or the command failed

Examples:
  imagepin du
  imagepin du --ref 'docker.io/library/*:*' -o wide
  imagepin du -o json | jq -r '.images[] | [.unique, .refs[0]] | @tsv'`

func (a *app) duCommand() *cli.Command {
	return &cli.Command{
		Name:        "du",
		Usage:       "Show the disk space of images",
		Description: duDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ref", Usage: "list only images with a reference that matches `GLOB` as a whole: * matches any text without a slash, ** any text"},
			noTruncFlag(),
		},
		Action: noArguments(a.du),
	}
}

func (a *app) du(ctx context.Context, cmd *cli.Command) error {
	usage, err := show(ctx, a, cmd, merged(api.ControlClient.DiskUsage), &api.DiskUsageRequest{RefGlob: cmd.String("ref")}, func(_ style, r *api.DiskUsageResponse) error { return a.printUsage(cmd, r) })
	if err != nil {
		return err
	}
	for _, sn := range usage.GetSnapshotters() {
		if sn.GetError() != "" {
			return exitError(exitFailed)
		}
	}
	return nil
}

func (a *app) printUsage(cmd *cli.Command, u *api.DiskUsageResponse) error {
	wide := cmd.String("output") == outputWide
	header := []string{"UNIQUE", "SHARED", "CONTENT", "SNAPSHOTS"}
	if wide {
		header = append(header, "UNPACKED", "IMAGE ID")
	}
	rows := make([][]string, len(u.GetImages()))
	for i, img := range u.GetImages() {
		rows[i] = []string{bytesText(img.GetUnique()), bytesText(img.GetShared()), bytesText(img.GetContent()), unpackedTotal(img)}
		if wide {
			rows[i] = append(rows[i], unpackedText(img), a.style(cmd).digest(img.GetImageId()))
		}
	}
	s := a.style(cmd)
	s.noTrunc = s.noTrunc || wide
	room := unlimited
	if t, ok := terminal(a.Out); ok && !s.noTrunc {
		width, _ := terminalSize(t)
		room = width - widthOf(header, rows)
	}
	for i, img := range u.GetImages() {
		rows[i] = append(rows[i], refsText(s, img.GetRefs(), room))
	}
	if err := a.table(append(header, "REFERENCE"), rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Out); err != nil {
		return err
	}
	return a.table([]string{"TOTAL", "ITEMS", "SIZE"}, usageTotals(s, u))
}

func usageTotals(s style, u *api.DiskUsageResponse) [][]string {
	content := func(name string, c *api.ContentUsage) []string {
		return []string{name, count(c.GetBlobs(), "blob"), bytesText(c.GetSize())}
	}
	snapshots := func(name string, n, size int64) []string {
		return []string{name, count(n, "snapshot"), bytesText(size)}
	}
	rows := [][]string{content("content", u.GetContent())}
	for _, sn := range u.GetSnapshotters() {
		if sn.GetError() != "" {
			rows = append(rows, []string{sn.GetSnapshotter(), none, "unknown: " + s.reason(sn.GetError())})
			continue
		}
		rows = append(rows, snapshots(sn.GetSnapshotter(), sn.GetSnapshots(), sn.GetSize()))
	}
	rows = append(rows, content("other content", u.GetOtherContent()))
	if c := u.GetResumableContent(); c.GetBlobs() > 0 {
		rows = append(rows, content("of failed pulls", c))
	}
	for _, sn := range u.GetSnapshotters() {
		if n := sn.GetOtherSnapshots(); n > 0 {
			rows = append(rows, snapshots("other "+sn.GetSnapshotter(), n, sn.GetOtherSize()))
		}
	}
	return rows
}

// reason returns the first line of an error, cut on a terminal.
func (s style) reason(text string) string {
	if !s.terminal {
		return firstLine(text)
	}
	return cut(firstLine(text), maxReason)
}

// unpackedTotal returns the size of an image in all snapshotters, with a mark if one did not respond.
func unpackedTotal(img *api.ImageUsage) string {
	var total int64
	unknown := false
	for _, u := range img.GetUnpacked() {
		total += u.GetSize()
		unknown = unknown || u.GetUnknown()
	}
	switch {
	case !unknown:
		return bytesText(total)
	case total == 0:
		return "unknown"
	}
	return ">" + bytesText(total)
}

// unpackedText returns the size of an image in each snapshotter.
func unpackedText(img *api.ImageUsage) string {
	return orNone(strings.Join(mapped(img.GetUnpacked(), func(u *api.UnpackedUsage) string {
		if u.GetUnknown() {
			return u.GetSnapshotter() + "=unknown"
		}
		return u.GetSnapshotter() + "=" + bytesText(u.GetSize())
	}), ","))
}

// widthOf returns the width of columns and of the spaces after them.
func widthOf(header []string, rows [][]string) int {
	total := 0
	for i := range header {
		width := utf8.RuneCountInString(header[i])
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[i]))
		}
		total += width + 2
	}
	return total
}

// refsText returns the first reference of an image, and how many others there are, without references by digest if there
// is a tag. It omits the beginning of a reference that needs more than room characters.
func refsText(s style, refs []string, room int) string {
	if len(refs) == 0 {
		return none
	}
	listed := slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return strings.Contains(ref, "@") })
	if len(listed) == 0 {
		listed = refs
	}
	more := ""
	if others := len(listed) - 1; others > 0 {
		more = fmt.Sprintf(" (+%d)", others)
	}
	runes := []rune(s.ref(listed[0]))
	if keep := max(room-len(more), 1); room != unlimited && len(runes) > keep {
		return "…" + string(runes[len(runes)-keep+1:]) + more
	}
	return string(runes) + more
}
