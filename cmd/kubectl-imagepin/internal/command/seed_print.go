package command

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/seed"
)

// print prints a report in the format of the flags.
func (o *seedOptions) print(report *seed.Report) error {
	switch {
	case !o.out.isOwn():
		data := *report
		data.TypeMeta = metav1.TypeMeta{APIVersion: outputVersion, Kind: "SeedReport"}
		return o.out.printData(o.Out, data)
	case o.out.format == "name":
		for _, i := range report.Items {
			if i.ImagePin == "" {
				continue
			}
			if _, err := fmt.Fprintf(o.Out, "imagepin.%s/%s\n", v1alpha1.GroupVersion.Group, i.ImagePin); err != nil {
				return err
			}
		}
		return nil
	}
	if len(report.Items) > 0 {
		if err := o.table(report.Items).print(o.Out, o.out); err != nil {
			return err
		}
	}
	o.warn(report)
	return nil
}

// warn says what to do about images that are not pinned to the digest of the lock.
func (o *seedOptions) warn(report *seed.Report) {
	if n := report.Count(seed.Conflict); n > 0 {
		fmt.Fprintf(o.ErrOut, "Warning: %s with another digest: to move to that of the lock, use --force\n", count(n, "ImagePin"))
	}
	if n := report.Count(seed.NotInLock); n > 0 {
		fmt.Fprintf(o.ErrOut, "Warning: %s not in the lock: the first node that starts a pod decides the digest\n", count(n, "image"))
	}
	if n := report.Count(seed.NoRevision); n > 0 {
		fmt.Fprintf(o.ErrOut, "Warning: %s of workloads without revisions: nodes decide the digests\n", count(n, "image"))
	}
}

func (o *seedOptions) table(items []seed.Item) *table {
	columns := []string{"Owner", "Image", "Digest", "Status"}
	if o.out.wide() {
		columns = append(columns, "ImagePin", "Revision")
	}
	t := newTable(o.allNamespaces, columns...)
	for _, i := range items {
		t.add(i.Namespace, o.row(i)...)
	}
	return t
}

func (o *seedOptions) row(i seed.Item) []any {
	d := short
	if o.out.wide() {
		d = func(digest string) string { return digest }
	}
	row := []any{ownerName(i.Owner), i.Image, d(i.Digest), o.status(i, d)}
	if o.out.wide() {
		row = append(row, i.ImagePin, i.Owner.Revision)
	}
	return row
}

// status returns the text of a status. d returns the digest as the table shows it.
func (o *seedOptions) status(i seed.Item, d func(string) string) string {
	dryRun := map[cmdutil.DryRunStrategy]string{cmdutil.DryRunClient: " (dry run)", cmdutil.DryRunServer: " (server dry run)"}[o.dryRun]
	switch i.Status {
	case seed.Created:
		return "created" + dryRun
	case seed.Moved:
		return "moved from " + d(i.Other) + dryRun
	case seed.Conflict:
		if i.By != nil {
			return "conflict: has " + d(i.Other) + ", created by node " + i.By.Node
		}
		return "conflict: has " + d(i.Other)
	case seed.NotInLock:
		return "not in lock"
	case seed.NoRevision:
		return "no revision"
	}
	return "unchanged"
}
