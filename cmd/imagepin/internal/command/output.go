package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const (
	outputTable = "table"
	outputJSON  = "json"

	// shortDigits is how many digits of a digest tell it apart, as in docker
	// and nerdctl.
	shortDigits = 12
	// none is in a cell that has nothing to say.
	none = "-"
)

// print prints a response: as it is in JSON, or as text makes it.
func (a *app) print(cmd *cli.Command, response proto.Message, text func() error) error {
	if cmd.String("output") == outputJSON {
		return printJSON(a.Out, response)
	}
	return text()
}

// printJSON prints m in protobuf's JSON form, with fields that are empty. Its
// own white space changes from build to build on purpose; ours does not.
func printJSON(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// table prints rows in columns.
func table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// field is one line of a block: a name and what is said of it. One without a
// value is left out.
type field struct{ name, value string }

// block prints fields one below the other, each line after indent.
func block(w io.Writer, indent string, fields ...field) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range fields {
		if f.value != "" {
			fmt.Fprintf(tw, "%s%s:\t%s\n", indent, f.name, f.value)
		}
	}
	return tw.Flush()
}

// style is how digests and times look in a table.
type style struct {
	whole bool
	now   time.Time
}

func (a *app) style(cmd *cli.Command) style {
	return style{whole: cmd.Bool("no-trunc"), now: a.now()}
}

func (s style) digest(d string) string {
	switch {
	case d == "":
		return none
	case s.whole:
		return d
	}
	return short(d)
}

// ref shortens the digest in a reference.
func (s style) ref(ref string) string {
	name, d, ok := strings.Cut(ref, "@")
	if s.whole || !ok {
		return ref
	}
	return name + "@" + short(d)
}

func (s style) time(t *timestamppb.Timestamp) string {
	switch {
	case unset(t):
		return none
	case s.whole:
		return stamp(t)
	}
	return s.ago(t)
}

func (s style) ago(t *timestamppb.Timestamp) string {
	return units.HumanDuration(s.now.Sub(t.AsTime())) + " ago"
}

// since is a time both ways, empty where there is none.
func (s style) since(t *timestamppb.Timestamp) string {
	if unset(t) {
		return ""
	}
	return fmt.Sprintf("%s (%s)", stamp(t), s.ago(t))
}

// unset also takes Go's zero time, which has a form of its own in protobuf.
func unset(t *timestamppb.Timestamp) bool { return t == nil || t.AsTime().IsZero() }

func stamp(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339) }

// short gives the first digits of a digest, and the algorithm where it is not
// the usual one. What is not a digest stays.
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

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// size is a number of bytes, empty where it is not known.
func size(n int64) string {
	if n == 0 {
		return ""
	}
	return units.BytesSize(float64(n))
}

func targetName(t *api.Target) string {
	if t == nil {
		return none
	}
	return t.GetPlatform() + " on " + t.GetSnapshotter()
}

// descriptor is empty where there is none.
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
	if r.GetRetain() {
		s += ", retain"
	}
	if r.GetAllowPodOverride() {
		s += ", allow_pod_override"
	}
	return s
}

// firstLine leaves out what an error's second line says is to be done, where
// there is room for one.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
