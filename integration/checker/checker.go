// Package checker checks a node from outside and reports what is wrong with it.
//
// It reads what is on the node through containerd's API, and checks it with package invariants. It does not use imagepin's code, so that
// it does not repeat its errors.
package checker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/internal/invariants"
)

const (
	pinNamespace = "imagepin"
	lockRecord   = "lock"
	extracting   = "extract-" // prefix of the snapshots of containerd's unpacker
)

// Options define what a node may have.
type Options struct {
	// Native is the node's own platform.
	Native string
	// DiscardedLayers allows layers to be absent.
	DiscardedLayers bool
	// Pods allows pods, with their own snapshots and leases.
	Pods bool
	// OtherTools allows pulls by other tools, after which an index keeps the manifests of all platforms that are
	// present.
	OtherTools bool
}

type check struct {
	ctx      context.Context
	node     *node.Node
	problems []string
	lock     string                 // the blob of the node's locks, as namespace/digest
	locked   map[digest.Digest]bool // images of the node's locks
}

// Check collects garbage and returns what is wrong: keys that lack something, and what belongs to no key, pin or pod.
// Nothing may change the node meanwhile.
func Check(ctx context.Context, n *node.Node, opts Options) ([]string, error) {
	if err := n.GC(ctx); err != nil {
		return nil, err
	}
	state, err := n.State(ctx)
	if err != nil {
		return nil, err
	}
	c := &check{ctx: namespaces.WithNamespace(ctx, node.Namespace), node: n, locked: map[digest.Digest]bool{}}
	of := invariants.New(c.read(state), invariants.Options{
		Native: opts.Native, Damaged: true, DiscardedLayers: opts.DiscardedLayers, Pods: opts.Pods, OtherTools: opts.OtherTools,
	})
	// containerd's CRI may write the record of an ID late. It must list such images, so that they can be removed.
	for name := range of.Images {
		if _, err := digest.Parse(name); err == nil && !of.IDs[name] {
			of.AllowImage(name)
			of.IDs[name] = true
		}
	}
	for name, info := range of.Snapshots {
		_, key, _ := strings.Cut(name, "/")
		if opts.Pods && info.Kind == snapshots.KindActive && !strings.HasPrefix(key, extracting) {
			of.Used[name] = true
		}
	}
	all := of.Finish()
	listed, err := n.Images().ListImages(c.ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range append(all, of.Listed(listed.GetImages())...) {
		c.wrong("%s", p.Text)
	}
	slices.Sort(c.problems)
	return c.problems, nil
}

func (c *check) wrong(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// read checks the pins and the lock, and that nothing is in another namespace. It returns the rest.
func (c *check) read(state *node.State) invariants.State {
	s := invariants.State{
		Pins: map[string]images.Image{}, Content: map[digest.Digest]content.Info{}, Leases: state.Leases, Resources: map[string][]leases.Resource{},
		Locked: c.locked, Read: func(d digest.Digest) ([]byte, error) {
			return content.ReadBlob(c.ctx, c.node.Client().ContentStore(), ocispec.Descriptor{Digest: d})
		},
	}
	for name, img := range state.Images {
		switch pin, ours := strings.CutPrefix(name, pinNamespace+"/"); {
		case pin == lockRecord:
			c.locks(img)
			delete(state.Images, name)
		case ours:
			c.pin(pin, img)
			s.Pins[pin] = img
			delete(state.Images, name)
		}
	}
	delete(state.Content, c.lock)
	s.Images = inCRI(c, "record", state.Images)
	s.Snapshots = inCRI(c, "snapshot", state.Snapshots)
	for d, info := range inCRI(c, "content", state.Content) {
		s.Content[digest.Digest(d)] = info
	}
	s.Ingests = slices.Sorted(maps.Keys(inCRI(c, "ingest", state.Ingests)))
	for id, resources := range state.LeaseResources {
		for _, r := range resources {
			kind, of, _ := strings.Cut(r, " ")
			s.Resources[id] = append(s.Resources[id], leases.Resource{Type: kind, ID: of})
		}
	}
	return s
}

// inCRI returns what is in the namespace of the CRI, without the namespace. What is in another one is leaked.
func inCRI[T any](c *check, what string, all map[string]T) map[string]T {
	in := make(map[string]T)
	for name, v := range all {
		if of, ok := strings.CutPrefix(name, node.Namespace+"/"); ok {
			in[of] = v
		} else {
			c.wrong("%s %s: leaked", what, name)
		}
	}
	return in
}

// pin checks the record of a pin.
func (c *check) pin(name string, img images.Image) {
	label := func(s string) string { return img.Labels["io.imagepin.pin."+s] }
	if label("version") != "1" || label("scope")+"/"+label("ref") != name || label("by") == "" {
		c.wrong("pin %s: invalid labels %v", name, img.Labels)
	}
	if _, err := time.Parse(time.RFC3339, label("made")); err != nil {
		c.wrong("pin %s: %v", name, err)
	}
	if err := img.Target.Digest.Validate(); err != nil || img.Target.MediaType == "" {
		c.wrong("pin %s: invalid target %v", name, img.Target)
	}
}

// imageOfLock matches an image of a lock.
var imageOfLock = regexp.MustCompile(`(?m)^ *image: \S+@(\S+)$`)

// locks checks the record of the node's lock and reads the images of that lock and the one before it.
func (c *check) locks(img images.Image) {
	b, err := content.ReadBlob(namespaces.WithNamespace(c.ctx, pinNamespace), c.node.Client().ContentStore(), img.Target)
	if err != nil || digest.FromBytes(b) != img.Target.Digest {
		c.wrong("the lock %s cannot be read: %v", img.Target.Digest, err)
		return
	}
	type lock struct {
		Lock string `json:"lock"`
	}
	var state struct {
		Version           int `json:"version"`
		Current, Previous *lock
	}
	if err := json.Unmarshal(b, &state); err != nil || state.Version != 1 {
		c.wrong("the lock %s is invalid: %v", img.Target.Digest, err)
	}
	c.lock = pinNamespace + "/" + img.Target.Digest.String()
	for label, l := range map[string]*lock{"io.imagepin.lock": state.Current, "io.imagepin.lock.previous": state.Previous} {
		want := ""
		if l != nil {
			want = digest.FromString(l.Lock).String()
			for _, m := range imageOfLock.FindAllStringSubmatch(l.Lock, -1) {
				c.locked[digest.Digest(m[1])] = true
			}
		}
		if img.Labels[label] != want {
			c.wrong("the record of the lock: got label %s %q, want %q", label, img.Labels[label], want)
		}
	}
}
