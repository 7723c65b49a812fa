package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const bundleVerifyDescription = `Reads a bundle to its end and checks it: each entry has the size and the digest
that it should have, everything that the images of its lock need is there, and
nothing else. It prints what the bundle does not have: manifests of other
platforms, and layers that an earlier lock has. The command needs neither
containerd nor root, and writes no files.

Exit code:
  0  the bundle is valid
  1  it is not, or it could not be read

Examples:
  imagepin bundle verify bundle.tar.zst
  imagepin bundle verify bundle.tar.zst -o json`

func (a *app) bundleVerifyCommand() *cli.Command {
	return &cli.Command{
		Name:        "verify",
		Usage:       "Check a bundle",
		ArgsUsage:   "FILE",
		Description: bundleVerifyDescription,
		Action:      a.bundleVerify,
	}
}

// bundleReport describes a bundle that is valid.
type bundleReport struct {
	File      string          `json:"file"`
	Lock      digest.Digest   `json:"lock"`
	Images    []bundleImage   `json:"images"`
	Platforms []string        `json:"platforms"` // empty for all
	Absent    []bundleAbsent  `json:"absent"`
	Since     digest.Digest   `json:"since"`
	Omitted   []digest.Digest `json:"omitted"`
	Blobs     int             `json:"blobs"`
	BlobsSize int64           `json:"blobsSize"` // bytes
	FileSize  int64           `json:"fileSize"`  // bytes
}

type bundleImage struct {
	ID     string        `json:"id"`
	Image  string        `json:"image"`
	Digest digest.Digest `json:"digest"`
}

type bundleAbsent struct {
	Index    digest.Digest `json:"index"`
	Manifest digest.Digest `json:"manifest"`
	Platform string        `json:"platform"`
}

func (a *app) bundleVerify(ctx context.Context, cmd *cli.Command) (err error) {
	args, err := arguments(cmd, "FILE")
	if err != nil {
		return err
	}
	b, err := bundle.Open(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // it was only read
	if err := b.Verify(ctx, verifyProgress(a.progressOut(cmd), args[0], a.now)); err != nil {
		return err
	}
	r := &bundleReport{
		File: args[0], Lock: b.LockDigest(), Platforms: append([]string{}, b.Platforms()...),
		Images: mapped(b.Lock().Images, func(i lock.Image) bundleImage { return bundleImage{i.ID, i.Ref.String(), i.Ref.Digest()} }),
		Absent: mapped(b.Absent(), func(absent bundle.Absent) bundleAbsent { return bundleAbsent(absent) }),
		Since:  b.Since(), Omitted: append([]digest.Digest{}, b.Omitted()...), FileSize: b.FileSize(),
	}
	r.Blobs, r.BlobsSize = b.Blobs()
	return a.print(cmd, r, func() error { return a.printBundleReport(cmd, r, b) })
}

// verifyProgress draws one line on a terminal, and nothing elsewhere.
func verifyProgress(w io.Writer, path string, now func() time.Time) func(done, total int64) {
	t, ok := animated(w)
	if !ok {
		return nil
	}
	var drawn time.Time
	clear := ""
	return func(done, total int64) {
		if at := now(); done == total || at.Sub(drawn) >= redrawEvery {
			drawn = at
			width, _ := terminalSize(t)
			fmt.Fprintf(w, "%s%s\n", clear, cut(fmt.Sprintf("%s: checked %s/%s", path, bytesText(done), bytesText(total)), width))
			clear = clearLine
		}
	}
}

func (a *app) printBundleReport(cmd *cli.Command, r *bundleReport, b *bundle.Bundle) error {
	s := a.style(cmd)
	if err := a.table([]string{"REFERENCE", "IMAGE"}, mapped(r.Images, func(i bundleImage) []string {
		return []string{orNone(i.ID), s.ref(i.Image)}
	})); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	if err := block(a.Out, "",
		field{"Lock", r.Lock.String()},
		field{"Blobs", fmt.Sprintf("%d, %s", r.Blobs, size(r.BlobsSize))},
		field{"File", size(r.FileSize)},
		field{"Platforms", platformsText(r.Platforms)},
		field{"Absent", absentText(b.Absent())},
		field{"Since", r.Since.String()},
		field{"Omitted", omittedCount(len(r.Omitted))},
	); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s: OK\n", r.File)
	return err
}

func omittedCount(n int) string {
	if n == 0 {
		return ""
	}
	return count(int64(n), "layer")
}
