package command

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const (
	// shortDigits is the number of digits in a truncated digest, as in docker and nerdctl.
	shortDigits = 12
	// none is the value of an empty cell.
	none = "-"
)

// table prints rows in columns.
func table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(tw, strings.Join(mapped(row, printable), "\t"))
	}
	return tw.Flush()
}

// table prints rows in columns, without a header if the user wants none.
func (a *app) table(header []string, rows [][]string) error {
	if !a.noHeaders {
		return table(a.Out, header, rows)
	}
	if len(rows) == 0 {
		return nil
	}
	return table(a.Out, rows[0], rows[1:])
}

// mapped returns a value for each item, for example the cells of its row.
func mapped[T, R any](items []T, value func(T) R) []R {
	all := make([]R, len(items))
	for i, item := range items {
		all[i] = value(item)
	}
	return all
}

// field is one line of a block: a name and a value. A field without a value is omitted.
type field struct{ name, value string }

// block prints fields as lines with an indent.
func block(w io.Writer, indent string, fields ...field) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range fields {
		if f.value != "" {
			fmt.Fprintf(tw, "%s%s:\t%s\n", indent, f.name, printable(f.value))
		}
	}
	return tw.Flush()
}

// digestHelp is in the help of each command with a table of digests.
const digestHelp = `DIGEST is what the registry returns for a tag, usually that of an index; MANIFEST
is the digest of one platform in it, and IMAGE ID that of the configuration.`

// style is the format of references, digests and times in a table.
type style struct {
	noTrunc  bool
	terminal bool
	now      time.Time
}

func (a *app) style(cmd *cli.Command) style {
	_, isTerminal := terminal(a.Out)
	return style{noTrunc: cmd.Bool("no-trunc"), terminal: isTerminal, now: a.now()}
}

func (s style) digest(d string) string {
	switch {
	case d == "":
		return none
	case s.noTrunc:
		return d
	}
	return short(d)
}

// ref truncates the digest in a reference on a terminal. What reads a pipe gets a reference that it can use.
func (s style) ref(ref string) string {
	name, d, ok := strings.Cut(ref, "@")
	if s.noTrunc || !s.terminal || !ok {
		return ref
	}
	return name + "@" + short(d)
}

func (s style) time(t *timestamppb.Timestamp) string {
	switch {
	case unset(t):
		return none
	case s.noTrunc:
		return stamp(t)
	}
	return s.ago(t)
}

func (s style) ago(t *timestamppb.Timestamp) string {
	return age(s.now.Sub(t.AsTime())) + " ago"
}

// since returns the absolute and the relative time, or "" if it is not set.
func (s style) since(t *timestamppb.Timestamp) string {
	if unset(t) {
		return ""
	}
	return fmt.Sprintf("%s (%s)", stamp(t), s.ago(t))
}

// unset also treats Go's zero time as unset, which is a valid time in protobuf.
func unset(t *timestamppb.Timestamp) bool { return t == nil || t.AsTime().IsZero() }

func stamp(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339) }

// short returns the first digits of a digest, with the algorithm if it is not SHA-256. It returns other texts
// unchanged.
func short(s string) string {
	d, err := digest.Parse(s)
	if err != nil {
		return s
	}
	digits := d.Encoded()[:shortDigits]
	if d.Algorithm() == digest.Canonical {
		return digits
	}
	return d.Algorithm().String() + ":" + digits
}

func orNone(s string) string { return cmp.Or(s, none) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// size formats a number of bytes. It returns "" if the number is unknown.
func size(n int64) string {
	if n == 0 {
		return ""
	}
	return bytesText(n)
}

// bytesText formats a number of bytes that is known. All output has this form, with binary units as in ctr and nerdctl.
func bytesText(n int64) string { return units.BytesSize(float64(n)) }

// age formats a duration as kubectl does: 45s, 5m, 3h, 2d.
func age(d time.Duration) string { return duration.HumanDuration(d) }

func targetName(t *api.Target) string {
	if t == nil {
		return none
	}
	return printable(t.GetPlatform() + " on " + t.GetSnapshotter())
}

// descriptor returns "" if there is none.
func descriptor(d *api.Descriptor) string {
	if d.GetDigest() == "" {
		return ""
	}
	s := d.GetDigest()
	if d.GetMediaType() != "" {
		s += ", " + d.GetMediaType()
	}
	if d.GetSize() > 0 {
		s += ", " + size(d.GetSize())
	}
	return s
}

func ruleText(r *api.Rule) string {
	if r == nil {
		return ""
	}
	match := "defaults"
	if r.GetMatch() != "" {
		match = "match " + r.GetMatch()
	}
	s := fmt.Sprintf("%s: pull_behavior %s, version_consistency %s", match, r.GetPullBehavior(), r.GetVersionConsistency())
	if r.GetNewRevision() == "resolve" {
		s += ", new_revision resolve"
	}
	if r.GetRetain() {
		s += ", retain"
	}
	if r.GetAllowPodOverride() {
		s += ", allow_pod_override"
	}
	if r.GetResolveAt() == "origin" {
		s += ", resolve_at origin"
	}
	if r.GetVerify() == "run" {
		s += ", verify run"
	}
	return s
}

// printable replaces the characters of a text that move the cursor or change the terminal. Names of images and snapshots, the
// configuration of an image, and what a registry answers can have any characters.
func printable(s string) string { return withoutControls(s, "") }

// printableLines is [printable] for a text of several lines.
func printableLines(s string) string { return withoutControls(s, "\n") }

func withoutControls(s, except string) string {
	return strings.Map(func(r rune) rune {
		if (r < ' ' || r >= 0x7f && r < 0xa0) && !strings.ContainsRune(except, r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// firstLine removes the second line of an error, which is a hint, for places with room for one line only.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// count returns a number of things, as text.
func count(n int64, singular string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %ss", n, singular)
}
