// Command bench compares lazy pulling with pulls of whole images: the same eStargz image from the same registry, on
// overlayfs with stock containerd, on overlayfs with imagepin, and on the stargz snapshotter with imagepin. It measures
// how long it takes until a pod runs, and until all files of the image were read.
//
// Each turn has a new node. The order of the turns changes with each repetition. The exit code is 0 if everything could
// be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/lazy"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench-lazy:", err)
		os.Exit(1)
	}
}

// The images: eight layers with sizes and a compressibility as in a Linux distribution.
var (
	fullTree  = images.Tree{Layers: 8, Files: 3_000, Size: 30 << 20, Seed: 2}
	quickTree = images.Tree{Layers: 2, Files: 20, Size: 1 << 20, Seed: 2}
)

// connectionLimit is what the limited registry sends over each connection, in bytes in a second.
const connectionLimit = 60 << 20

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench-lazy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	n := flags.Int("n", 5, "number of `repetitions`")
	quick := flags.Bool("quick", false, "a small image and one repetition: a test of the benchmark, not of speed")
	out := flags.String("out", "", "`file` for the table")
	doc := flags.String("doc", "", "measure nothing: write the table of the -out file into the `document`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *n < 1 || *doc != "" && *out == "" {
		return errors.New("invalid arguments; see -help")
	}
	if *doc != "" {
		return measure.Paste(*doc, "lazy table", *out)
	}
	tree := fullTree
	if *quick {
		*n, tree = 1, quickTree
	}
	b := &bench{log: stderr}
	if err := b.measure(ctx, tree, *n); err != nil {
		return err
	}
	about, err := measure.Machine()
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s; %d repetitions\n\n", about, *n)
	if err := measure.Table(&text, b.table(), false); err != nil {
		return err
	}
	if *out != "" {
		if err := os.WriteFile(*out, []byte(text.String()), 0o644); err != nil {
			return err
		}
	}
	_, err = io.WriteString(stdout, text.String())
	return err
}

// side is a way to run an image.
type side struct {
	name   string
	binary string
	lazy   bool // the snapshotter is stargz, otherwise overlayfs
}

var sides = []side{
	{name: "overlayfs, stock", binary: node.Stock},
	{name: "overlayfs, imagepin", binary: node.Ours},
	{name: "stargz, imagepin", binary: node.Ours, lazy: true},
}

// times are the numbers of one turn.
type times struct {
	running, read           time.Duration // since the call of PullImage
	runningBytes, readBytes float64       // that the registry has sent until then
}

// bench measures.
type bench struct {
	log   io.Writer // progress
	reg   *registry.Registry
	roots []string
	hosts []host
}

// host is an address of the registry, with all turns of each side.
type host struct {
	name, address string
	turns         map[string][]times
}

const (
	repository = "lazy"
	pauseTag   = "pause:3.10"
	handler    = "lazy"
)

func (b *bench) measure(ctx context.Context, tree images.Tree, n int) (err error) {
	if err := node.Sweep(); err != nil {
		return err
	}
	// Removing many files slows down later turns.
	defer func() {
		for _, root := range b.roots {
			err = errors.Join(err, os.RemoveAll(root))
		}
	}()
	if b.reg, err = registry.New(); err != nil {
		return err
	}
	defer b.reg.Close()
	if err := b.push(ctx, tree); err != nil {
		return err
	}
	limited, err := b.reg.Limit(connectionLimit)
	if err != nil {
		return err
	}
	for _, h := range []host{{name: "registry on loopback", address: b.reg.Host()}, {name: "60 MiB/s for each connection", address: limited}} {
		h.turns = make(map[string][]times)
		b.hosts = append(b.hosts, h)
		for i := range n {
			order := slices.Clone(sides)
			if i%2 == 1 {
				slices.Reverse(order)
			}
			for _, s := range order {
				got, err := b.turn(ctx, s, h.address+"/"+repository+":v1")
				if err != nil {
					return fmt.Errorf("%s, %s: %w", h.name, s.name, err)
				}
				h.turns[s.name] = append(h.turns[s.name], got)
				fmt.Fprintf(b.log, "%s  %s, %s: runs after %s, read after %s\n", time.Now().Format(time.TimeOnly), h.name, s.name,
					measure.Duration(got.running), measure.Duration(got.read))
			}
		}
	}
	return nil
}

func (b *bench) push(ctx context.Context, tree images.Tree) error {
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return err
	}
	if _, err := b.reg.Push(pauseTag, pause); err != nil {
		return err
	}
	img, err := lazy.StargzIndex(ctx, tree.Options(), images.HostPlatform())
	if err != nil {
		return err
	}
	_, err = b.reg.Push(repository+":v1", img)
	return err
}

// turn runs the image on a new node, and reads all its files.
func (b *bench) turn(ctx context.Context, s side, ref string) (_ times, err error) {
	var got times
	root, err := node.TempDir()
	if err != nil {
		return got, err
	}
	b.roots = append(b.roots, root)
	opts := node.Options{Mode: node.Plugin, Binary: s.binary, Root: root, SandboxImage: b.reg.Ref(pauseTag), LogLevel: "info"}
	pull, pod := node.PullOptions{}, node.PodOptions{}
	if s.lazy {
		sn, err := lazy.NewSnapshotter()
		if err != nil {
			return got, err
		}
		sn.Background = true
		defer func() { err = errors.Join(err, sn.Close()) }() // after the node
		if err := sn.Start(ctx); err != nil {
			return got, err
		}
		opts.Handlers = []node.Handler{{Name: handler, Snapshotter: lazy.SnapshotterName}}
		opts.Extra = sn.Config()
		pull.Handler, pod.Handler = handler, handler
	}
	n, err := node.Start(ctx, opts)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, n.RemovePods(context.WithoutCancel(ctx)), n.Close()) }()
	if pull.Pod, err = n.RunPod(ctx, pod); err != nil {
		return got, err
	}
	b.reg.Reset()
	syscall.Sync()
	start := time.Now()
	id, err := n.PullWith(ctx, ref, pull)
	if err != nil {
		return got, err
	}
	c, _, err := n.RunContainer(ctx, pull.Pod, node.ContainerOptions{Image: id, UserImage: ref})
	if err != nil {
		return got, err
	}
	got.running, got.runningBytes = time.Since(start), b.sent()
	if err := readAll(n.Path("state", "io.containerd.runtime.v2.task", node.Namespace, c.ID, "rootfs")); err != nil {
		return got, err
	}
	got.read, got.readBytes = time.Since(start), b.sent()
	return got, nil
}

// sent returns the number of bytes in the answers of the registry.
func (b *bench) sent() (n float64) {
	for _, q := range b.reg.Requests() {
		n += float64(q.Bytes)
	}
	return n
}

// readAll reads all files of a directory, one after the other.
func readAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return errors.Join(err, f.Close())
	})
}

// table returns the medians, with minimum and maximum of times.
func (b *bench) table() [][]string {
	lines := [][]string{{"", sides[0].name, sides[1].name, sides[2].name}}
	for _, h := range b.hosts {
		for _, r := range []struct {
			name string
			of   func(times) float64
			text func(all []float64) string
		}{
			{"pod runs after", func(t times) float64 { return float64(t.running) }, spread},
			{"all files read after", func(t times) float64 { return float64(t.read) }, spread},
			{"fetched until the pod runs", func(t times) float64 { return t.runningBytes }, megabytes},
			{"fetched until all files are read", func(t times) float64 { return t.readBytes }, megabytes},
		} {
			line := []string{h.name + ": " + r.name}
			for _, s := range sides {
				var all []float64
				for _, t := range h.turns[s.name] {
					all = append(all, r.of(t))
				}
				line = append(line, r.text(all))
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func spread(all []float64) string {
	text := func(v float64) string { return measure.Duration(time.Duration(v)) }
	return fmt.Sprintf("%s (%s–%s)", text(measure.Median(all)), text(slices.Min(all)), text(slices.Max(all)))
}

func megabytes(all []float64) string { return measure.Megabytes(measure.Median(all)) }
