package command

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/protect"
)

// print prints a report in the format of the flags.
func (o *protectOptions) print(report *protect.Report) error {
	if !o.out.isOwn() {
		data := *report
		data.TypeMeta = metav1.TypeMeta{APIVersion: outputVersion, Kind: "ProtectReport"}
		return o.out.printData(o.Out, data)
	}
	items := report.Items
	if !o.all {
		fine := []protect.Status{protect.Protected}
		if o.check {
			fine = append(fine, protect.OtherTag)
		}
		items = slices.DeleteFunc(slices.Clone(items), func(i protect.Item) bool { return slices.Contains(fine, i.Status) })
	}
	if len(items) > 0 {
		if err := o.protectTable(items).print(o.Out, o.out); err != nil {
			return err
		}
	}
	fmt.Fprintln(o.ErrOut, summary(report))
	return nil
}

func (o *protectOptions) protectTable(items []protect.Item) *table {
	columns := []string{"Repository", "Digest", "Used By", "Status"}
	if o.out.wide() {
		columns = append(columns, "Tag")
	}
	t := newTable(false, columns...)
	for _, i := range items {
		var users []string
		for _, u := range i.UsedBy {
			users = append(users, u.Kind+"/"+u.Name)
		}
		users = slices.Compact(users)
		d, shown := short(i.Digest), 1
		if o.out.wide() {
			d, shown = i.Digest, len(users)
		}
		if d == "" {
			d = i.Tag[strings.LastIndexByte(i.Tag, '-')+1:]
		}
		row := []any{i.Repository, d, list(users, shown), o.protectStatus(i)}
		if o.out.wide() {
			row = append(row, i.Tag)
		}
		t.add("", row...)
	}
	return t
}

// protectStatus returns the text of a status.
func (o *protectOptions) protectStatus(i protect.Item) string {
	texts := map[protect.Status]string{
		protect.Needed: "needed", protect.Protected: "protected", protect.Tagged: "tagged", protect.Gone: "gone", protect.Refused: "refused",
		protect.Conflict: "conflict", protect.Failed: "failed", protect.OtherTag: "tag " + i.OtherTag, protect.Untagged: "untagged",
		protect.Removed: "tag removed", protect.Kept: "tag kept",
	}
	text := texts[i.Status]
	if i.Reason != "" {
		text += ": " + i.Reason
	}
	if o.dryRun == cmdutil.DryRunServer && (i.Status == protect.Tagged || i.Status == protect.Removed) {
		text += " (server dry run)"
	}
	return text
}

// summary says in one line what a run has found.
func summary(r *protect.Report) string {
	var parts []string
	digests := 0
	for _, s := range []struct {
		status protect.Status
		text   string
	}{
		{protect.Protected, "protected"}, {protect.Tagged, "tagged"}, {protect.OtherTag, "with a tag that can move"}, {protect.Untagged, "untagged"},
		{protect.Gone, "gone"}, {protect.Refused, "refused"}, {protect.Conflict, "in conflict"}, {protect.Failed, "failed"},
	} {
		if n := r.Count(s.status); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s.text))
			digests += n
		}
	}
	digests += r.Count(protect.Needed)
	text := count(digests, "digest") + " in use"
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	text += "."
	if n := r.Count(protect.Removed); n > 0 {
		text += fmt.Sprintf(" %s removed.", count(n, "tag"))
	}
	if n := r.Count(protect.Kept); n > 0 {
		text += fmt.Sprintf(" %s kept that nothing needs.", count(n, "tag"))
	}
	if r.Unknown > 0 {
		text += fmt.Sprintf(" %s without a digest of a registry.", count(r.Unknown, "container"))
	}
	return text
}
