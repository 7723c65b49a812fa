package invariants

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	native  = "linux/amd64"
	tag     = "registry.example/app:1"
	retain  = "retain"
	resume  = "resume"
	expires = "containerd.io/gc.expire"
	left    = "left"
	onFirst = "first/"
)

// node is a node with one key, whose digest a pin retains, and with what a failed pull has fetched.
type node struct {
	*testing.T
	State
	key                        Key
	layer, left                digest.Digest
	byDigest, label, id, chain string
}

func newNode(t *testing.T) *node {
	blobs := map[digest.Digest][]byte{}
	n := &node{T: t, label: "io.imagepin.key.0", State: State{
		Content: map[digest.Digest]content.Info{}, Locked: map[digest.Digest]bool{},
		Read: func(d digest.Digest) ([]byte, error) {
			if b, ok := blobs[d]; ok {
				return b, nil
			}
			return nil, errors.New("no such blob")
		},
	}}
	add := func(v any) ocispec.Descriptor {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(b)
		blobs[d], n.Content[d] = b, content.Info{Digest: d}
		return ocispec.Descriptor{Digest: d, Size: int64(len(b))}
	}
	layer := add("layer")
	diff := digest.FromString("unpacked layer")
	config := add(ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{DiffIDs: []digest.Digest{diff}}})
	manifest := add(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, Config: config, Layers: []ocispec.Descriptor{layer}})
	index := add(ocispec.Index{Manifests: []ocispec.Descriptor{manifest}})
	n.layer, n.left = layer.Digest, add(left).Digest
	n.key = Key{Version: 1, Ref: tag, Platform: native, Snapshotter: "first", Digest: index.Digest, Manifest: manifest.Digest, Image: config.Digest, Chain: diff, Ready: time.Now()}
	n.byDigest, n.id, n.chain = "registry.example/app@"+index.Digest.String(), config.Digest.String(), diff.String()
	n.Images = map[string]images.Image{n.byDigest: {Target: index, Labels: map[string]string{}}, tag: {Target: index}, n.id: {Target: index}}
	n.Pins = map[string]images.Image{"node/" + tag: {Target: index, Labels: map[string]string{"io.imagepin.pin.retain": "true", "io.imagepin.pin.ref": tag}}}
	n.Snapshots = map[string]snapshots.Info{onFirst + n.chain: {Kind: snapshots.KindCommitted}}
	n.Leases = map[string]leases.Lease{
		retain: {Labels: map[string]string{"io.imagepin.lease": "retain", "io.imagepin.retain.root": index.Digest.String()}},
		resume: {Labels: map[string]string{"io.imagepin.lease": "resume", "containerd.io/gc.flat": "", expires: in(time.Hour)}},
	}
	n.Resources = map[string][]leases.Resource{
		retain: {{Type: "content", ID: manifest.Digest.String()}, {Type: "content", ID: n.id}, {Type: "snapshots/first", ID: n.chain}},
		resume: {{Type: "content", ID: n.left.String()}, {Type: "ingests", ID: left}},
	}
	n.Ingests = []string{left}
	return n
}

// mark writes the label of the key.
func (n *node) mark() {
	b, err := json.Marshal(n.key)
	if err != nil {
		n.Fatal(err)
	}
	n.Images[n.byDigest].Labels[n.label] = string(b)
}

// TestProblems damages a node in many ways, and checks that a problem names the damage, or that there is none.
func TestProblems(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(n *node, key *Key)
		allow  Options
		want   string // a part of a problem
	}{
		"nothing":                   {func(n *node, key *Key) {}, Options{}, ""},
		"label":                     {func(n *node, key *Key) { n.Images[n.byDigest].Labels[n.label] = "{" }, Options{}, "key-unreadable: record"},
		"version":                   {func(n *node, key *Key) { key.Version = 2 }, Options{}, "key-unreadable: record"},
		"time":                      {func(n *node, key *Key) { key.Ready = time.Time{} }, Options{}, "key-unreadable: record"},
		"two labels":                {func(n *node, key *Key) { n.mark(); n.label = "io.imagepin.key.1" }, Options{}, "is on two records"},
		"index of another platform": {func(n *node, key *Key) { key.Platform = "linux/arm64" }, Options{}, "of another platform: got target"},
		"platform":                  {func(n *node, key *Key) { key.Platform = "linux/arm64" }, Options{}, "has platform linux/amd64"},
		"another repository":        {func(n *node, key *Key) { key.Ref = "registry.example/b:1" }, Options{}, "got record registry.example/app@"},
		"manifest":                  {func(n *node, key *Key) { key.Manifest = n.left }, Options{}, "has no manifest"},
		"manifest of another image": {func(n *node, key *Key) { key.Image = n.left }, Options{}, "got configuration"},
		"chain ID":                  {func(n *node, key *Key) { key.Chain = n.left }, Options{}, "got chain ID"},
		"no record of the tag":      {func(n *node, key *Key) { delete(n.Images, tag) }, Options{}, "no record registry.example/app:1"},
		"no record of the ID":       {func(n *node, key *Key) { delete(n.Images, n.id) }, Options{}, "no record sha256:"},
		"tag moved":                 {func(n *node, key *Key) { n.record(tag, n.layer) }, Options{}, "tag-or-id-has-another-digest: record registry"},
		"tag moved by a tool":       {func(n *node, key *Key) { n.record(tag, n.layer) }, Options{OtherTags: true}, ""},
		"ID moved":                  {func(n *node, key *Key) { n.record(n.id, n.layer) }, Options{OtherTags: true}, "tag-or-id-has-another-digest: record sha256:"},
		"no content": {func(n *node, key *Key) {
			n.Read = func(digest.Digest) ([]byte, error) { return nil, errors.New("gone") }
		}, Options{}, ": gone"},
		"changed content":                 {func(n *node, key *Key) { n.Read = func(digest.Digest) ([]byte, error) { return []byte("{}"), nil } }, Options{}, "the content has another digest"},
		"no layer":                        {func(n *node, key *Key) { delete(n.Content, n.layer) }, Options{}, "key-without-layer"},
		"no layer, discarded":             {func(n *node, key *Key) { delete(n.Content, n.layer) }, Options{DiscardedLayers: true}, ""},
		"no layer, damaged":               {func(n *node, key *Key) { key.Damaged = time.Now(); delete(n.Content, n.layer) }, Options{}, "key-without-layer"},
		"no layer, damage allowed":        {func(n *node, key *Key) { key.Damaged = time.Now(); delete(n.Content, n.layer) }, Options{Damaged: true}, ""},
		"no snapshot":                     {func(n *node, key *Key) { delete(n.Snapshots, onFirst+n.chain) }, Options{}, "no committed snapshot"},
		"no retained snapshot":            {func(n *node, key *Key) { delete(n.Snapshots, onFirst+n.chain) }, Options{}, "no retained snapshot"},
		"active snapshot":                 {func(n *node, key *Key) { n.Snapshots[onFirst+n.chain] = snapshots.Info{Kind: snapshots.KindActive} }, Options{}, "no committed snapshot"},
		"no pin":                          {func(n *node, key *Key) { clear(n.Pins) }, Options{}, "but no pin does"},
		"pin that does not retain":        {func(n *node, key *Key) { clear(n.Pins["node/"+tag].Labels) }, Options{}, "but no pin does"},
		"a lock":                          {func(n *node, key *Key) { clear(n.Pins); n.Locked[key.Digest] = true }, Options{}, ""},
		"no lease of the pin":             {func(n *node, key *Key) { delete(n.Leases, retain) }, Options{}, "no lease has content"},
		"lease without a snapshot":        {func(n *node, key *Key) { n.Resources[retain] = n.Resources[retain][:2] }, Options{}, "no lease has snapshots/first"},
		"lease of a call":                 {func(n *node, key *Key) { n.lease("call") }, Options{Pods: true}, "lease call: leaked"},
		"lease of a pod":                  {func(n *node, key *Key) { n.lease("") }, Options{}, "lease-leaked"},
		"lease of a pod, allowed":         {func(n *node, key *Key) { n.lease("") }, Options{Pods: true}, ""},
		"no expiration":                   {func(n *node, key *Key) { delete(n.Leases[resume].Labels, expires) }, Options{}, "expires within a day"},
		"late expiration":                 {func(n *node, key *Key) { n.Leases[resume].Labels[expires] = in(48 * time.Hour) }, Options{}, "expires within a day"},
		"not flat":                        {func(n *node, key *Key) { delete(n.Leases[resume].Labels, "containerd.io/gc.flat") }, Options{}, "expires within a day"},
		"snapshot of a failed pull":       {func(n *node, key *Key) { n.Resources[resume] = n.Resources[retain] }, Options{}, "of a failed pull holds"},
		"ingest without a lease":          {func(n *node, key *Key) { delete(n.Leases, resume) }, Options{}, "ingest-leaked"},
		"content without a lease":         {func(n *node, key *Key) { delete(n.Leases, resume) }, Options{}, "content-leaked"},
		"record":                          {func(n *node, key *Key) { n.record("x", n.layer) }, Options{OtherTags: true}, "record x of"},
		"record without content":          {func(n *node, key *Key) { n.record("x", "sha256:gone") }, Options{}, "record x of"},
		"record without content, allowed": {func(n *node, key *Key) { n.record("x", "sha256:gone") }, Options{OtherTags: true}, ""},
		"snapshot":                        {func(n *node, key *Key) { n.Snapshots[onFirst+"x"] = snapshots.Info{} }, Options{}, "snapshot first/x"},
		"child":                           {func(n *node, key *Key) { n.addChild() }, Options{}, "content-leaked"},
		"child of another tool":           {func(n *node, key *Key) { n.addChild() }, Options{OtherTools: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			test.damage(n, &n.key)
			if n.Images[n.byDigest].Labels[n.label] == "" {
				n.mark()
			}
			test.allow.Native, test.allow.ExactPlatforms = native, true
			problems := New(n.State, test.allow).Finish()
			if test.want == "" && len(problems) > 0 || test.want != "" && !slices.ContainsFunc(problems, func(p Problem) bool {
				return strings.Contains(p.Invariant+": "+p.Text, test.want)
			}) {
				t.Errorf("got %v, want %q", problems, test.want)
			}
		})
	}
}

func in(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }

func (n *node) record(name string, target digest.Digest) {
	n.Images[name] = images.Image{Target: ocispec.Descriptor{Digest: target}}
}

func (n *node) lease(purpose string) {
	n.Leases["call"] = leases.Lease{Labels: map[string]string{"io.imagepin.lease": purpose}}
}

// addChild adds content that only a label of the index keeps.
func (n *node) addChild() {
	child := digest.FromString("child")
	n.Content[child] = content.Info{Digest: child}
	n.Content[n.key.Digest] = content.Info{Labels: map[string]string{"containerd.io/gc.ref.content.m.1": child.String()}}
}

// TestListed checks what the CRI may list.
func TestListed(t *testing.T) {
	const other = "sha256:x"
	n := newNode(t)
	n.mark()
	n.record(other, n.layer)
	c := New(n.State, Options{Native: native})
	c.AllowImage(other)
	if problems := c.Finish(); problems != nil {
		t.Error(problems)
	}
	for _, test := range []struct {
		ids  []string
		want int
	}{{[]string{n.id}, 0}, {[]string{n.id, other}, 0}, {nil, 1}, {[]string{n.id, "sha256:y"}, 1}} {
		var all []*cri.Image
		for _, id := range test.ids {
			all = append(all, &cri.Image{Id: id})
		}
		if got := c.Listed(all); len(got) != test.want {
			t.Errorf("listed %q: got %v, want %d problems", test.ids, got, test.want)
		}
	}
}
