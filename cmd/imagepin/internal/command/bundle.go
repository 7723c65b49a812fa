package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/cmd/imagepin/internal/registry"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

const bundleDescription = `Writes all images of a lock to one file, for nodes that reach no registry. The
file is an OCI image layout in a tar archive, with the lock in it. A file name
that ends in .tar.zst selects compression, one that ends in .tar does not. "-"
as LOCK is standard input. The command needs neither containerd nor root.

Every index and manifest is as published. With --since, only a node that has the
images of the earlier lock can use the bundle.

The command writes to FILE.partial and renames it at the end. After an
interruption, the same command continues. Equal arguments give equal bytes.

Credentials are those of docker's configuration.

Examples:
  imagepin bundle images.lock.yaml -o bundle.tar.zst
  imagepin bundle images.lock.yaml -o bundle.tar.zst --platform linux/amd64 --platform linux/arm64
  imagepin bundle v2.lock.yaml -o update.tar.zst --since v1.lock.yaml
  imagepin lock -f manifests/ | imagepin bundle - -o bundle.tar.zst`

func (a *app) bundleCommand() *cli.Command {
	return &cli.Command{
		Name:        "bundle",
		Usage:       "Write the images of a lock to a file, for nodes without a registry",
		ArgsUsage:   "LOCK",
		Description: bundleDescription,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Local: true, TakesFile: true, Usage: "write to `FILE`, whose name ends in .tar or .tar.zst"},
			&cli.StringSliceFlag{Name: "platform", Local: true, Usage: "only for `PLATFORM`, for example linux/arm64; can be repeated; without it, for all"},
			&cli.StringFlag{Name: "since", Local: true, TakesFile: true, Usage: "omit the layers that the images of the earlier lock in `FILE` have"},
			&cli.StringSliceFlag{Name: "hosts-dir", Local: true, Value: registry.DefaultHostsDirs, Usage: "directory `DIR` with HOST/hosts.toml; can be repeated"},
		},
		Action:   a.bundle,
		Commands: []*cli.Command{a.bundleVerifyCommand()},
	}
}

func (a *app) bundle(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "LOCK")
	if err != nil {
		return err
	}
	path := cmd.String("out")
	if path == "" {
		return fmt.Errorf("%s needs -o FILE, see %s --help", cmd.FullName(), cmd.FullName())
	}
	var o bundle.Options
	if o.Lock, err = readLock(args[0], a.In); err != nil {
		return err
	}
	if since := cmd.String("since"); since != "" {
		if o.Since, err = readLock(since, a.In); err != nil {
			return err
		}
	}
	for _, p := range cmd.StringSlice("platform") {
		platform, err := platforms.Parse(p)
		if err != nil {
			return fmt.Errorf("--platform %q: %w", p, err)
		}
		o.Platforms = append(o.Platforms, platforms.Normalize(platform))
	}
	client, err := registry.New(registry.Config{HostsDirs: cmd.StringSlice("hosts-dir")})
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(ctx, cmd.Duration("timeout"))
	defer cancel()
	result, err := a.writeBundle(ctx, path, o, client)
	if err != nil {
		return err
	}
	return a.printBundle(path, result)
}

// writeBundle writes a bundle and shows the progress.
func (a *app) writeBundle(ctx context.Context, path string, o bundle.Options, source bundle.Source) (*bundle.Result, error) {
	changes := bundleChanges{}
	_, changes.all = animated(a.Out)
	o.Progress = changes.add
	type end struct {
		result *bundle.Result
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends Write if printing failed
	ended := make(chan end, 1)
	go func() {
		result, err := bundle.Write(ctx, path, o, source)
		ended <- end{result, err}
	}()
	shown := newProgress(a.Out, path, a.now)
	show := func() error { return errors.Join(shown.update(changes.take()), shown.redraw()) }
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := show(); err != nil {
				cancel()
				<-ended // it writes to the file
				return nil, err
			}
		case e := <-ended:
			if ctx.Err() != nil && e.err != nil {
				e.err = context.Cause(ctx)
			}
			return e.result, errors.Join(e.err, show())
		}
	}
}

// bundleChanges has the progress of blobs since it was last shown. It is safe for concurrent use.
type bundleChanges struct {
	all bool // also of blobs that are not complete

	mu      sync.Mutex
	changes map[string]*api.Progress
	order   []string
}

func (c *bundleChanges) add(d ocispec.Descriptor, offset int64, resumed bool) {
	event := eventDownloading
	switch {
	case resumed:
		event = eventExists
	case offset == d.Size:
		event = "complete"
	case !c.all:
		return
	case offset == 0:
		event = eventWaiting
	}
	key := d.Digest.String()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.changes[key]; !ok {
		if c.changes == nil {
			c.changes = make(map[string]*api.Progress)
		}
		c.order = append(c.order, key)
	}
	c.changes[key] = &api.Progress{Digest: key, MediaType: d.MediaType, Event: event, Offset: offset, Total: d.Size}
}

// take returns the changes in the order in which the blobs changed first.
func (c *bundleChanges) take() []*api.Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := mapped(c.order, func(key string) *api.Progress { return c.changes[key] })
	c.changes, c.order = nil, nil
	return all
}

func (a *app) printBundle(path string, r *bundle.Result) error {
	if r.Discarded {
		fmt.Fprintf(a.Err, "imagepin: note: %s%s had other or damaged content, which was written again\n", path, bundle.PartialSuffix)
	}
	for _, ref := range r.Unmatched {
		fmt.Fprintf(a.Err, "imagepin: note: %s has no manifest for these platforms\n", ref)
	}
	fmt.Fprintf(a.Out, "Wrote %s\n", path)
	return block(a.Out, "",
		field{"Lock", r.Lock.String()},
		field{"Images", fmt.Sprint(r.Images)},
		field{"Blobs", fmt.Sprintf("%d, %s", r.Blobs, size(r.BlobsSize))},
		field{"File", size(r.FileSize)},
		field{"Platforms", platformsText(r.Platforms)},
		field{"Absent", absentText(r.Absent)},
		field{"Since", r.Since.String()},
		field{"Omitted", omittedText(r.Omitted, r.OmittedSize)},
		field{"Resumed", resumedText(r.Resumed, r.Size)},
	)
}

func platformsText(all []string) string { return cmp.Or(strings.Join(all, ", "), "all") }

// absentText counts absent manifests by platform.
func absentText(all []bundle.Absent) string {
	counts := make(map[string]int)
	for _, a := range all {
		counts[a.Platform]++
	}
	return strings.Join(mapped(slices.Sorted(maps.Keys(counts)), func(p string) string { return fmt.Sprintf("%s (%d)", p, counts[p]) }), ", ")
}

func omittedText(n int, bytes int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%s, %s", count(int64(n), "layer"), size(bytes))
}

func resumedText(resumed, all int64) string {
	if resumed == 0 {
		return ""
	}
	return fmt.Sprintf("after %s of %s", size(resumed), size(all))
}
