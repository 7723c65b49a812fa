package testkit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// Damage damages the file of a blob. containerd's metadata does not show it.
type Damage struct {
	Do   func(path string) error
	Deep bool // only reading the file shows it
}

// Damages are the kinds of damage to the file of a blob.
var Damages = map[string]Damage{
	"gone": {Do: os.Remove},
	"cut": {Do: func(path string) error {
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		return os.Truncate(path, 7)
	}},
	"one bit flipped": {Deep: true, Do: func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[len(b)/2] ^= 1
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		return os.WriteFile(path, b, 0o400)
	}},
}

// Blobs returns the digests of the parts of an image for the default handler.
func (r *Rig) Blobs(ref string) map[string]digest.Digest {
	r.T.Helper()
	resp, err := r.Control().Images(r.Ctx, &api.ImagesRequest{RefGlob: ref, Handler: "runc"})
	if err != nil || len(resp.Keys) != 1 {
		r.T.Fatalf("keys of %s: %v, %v", ref, resp, err)
	}
	k := resp.Keys[0]
	b, err := content.ReadBlob(NSContext(r.Ctx), r.Client().ContentStore(), ocispec.Descriptor{Digest: digest.Digest(k.Manifest)})
	if err != nil {
		r.T.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		r.T.Fatal(err)
	}
	return map[string]digest.Digest{
		"index": digest.Digest(k.Root.Digest), "manifest": digest.Digest(k.Manifest), "configuration": digest.Digest(k.ImageId),
		"layer": m.Layers[len(m.Layers)-1].Digest,
	}
}

// BlobFile returns the path of a blob.
func (r *Rig) BlobFile(d digest.Digest) string {
	return r.Path("root", "io.containerd.content.v1.content", "blobs", d.Algorithm().String(), d.Encoded())
}

// Damage damages the file of a blob, see [Damages].
func (r *Rig) Damage(how string, d digest.Digest) {
	r.T.Helper()
	if err := Damages[how].Do(r.BlobFile(d)); err != nil {
		r.T.Fatal(err)
	}
}

// DeepCheck runs a deep check and returns its findings, without those of images that are unverified.
func (r *Rig) DeepCheck(repair bool) []*api.Finding {
	r.T.Helper()
	return slices.DeleteFunc(r.deepCheck(repair), func(f *api.Finding) bool { return f.Unverified })
}

// Unverified runs a deep check and returns the findings of images that are unverified.
func (r *Rig) Unverified() []*api.Finding {
	r.T.Helper()
	return slices.DeleteFunc(r.deepCheck(false), func(f *api.Finding) bool { return !f.Unverified })
}

func (r *Rig) deepCheck(repair bool) []*api.Finding {
	r.T.Helper()
	stream, err := r.Control().DeepCheck(r.Ctx, &api.DeepCheckRequest{Repair: repair, BytesPerSecond: -1})
	if err != nil {
		r.T.Fatal(err)
	}
	var last *api.DeepCheckProgress
	for {
		m, err := stream.Recv()
		if err != nil {
			r.T.Fatal(err)
		}
		if m.Result == nil {
			last = m.Progress
			continue
		}
		if last == nil || last.Blobs != last.BlobsTotal || last.Bytes != last.BytesTotal || last.Snapshots != last.SnapshotsTotal || last.BytesTotal == 0 {
			r.T.Errorf("the check ended at %v", last)
		}
		return m.Result.Findings
	}
}

// WantUndamaged checks that nothing is damaged, that the image runs in these pods, and that no lease of imagepin is left.
func (r *Rig) WantUndamaged(ref, version string, pods []*node.Pod) {
	r.T.Helper()
	if found := r.DeepCheck(false); len(found) > 0 {
		r.T.Errorf("a deep check finds %v", found)
	}
	for _, p := range pods {
		r.MustPull(ref, p.Handler)
		r.WantRunIn(p, ref, Line(testimages.Options{Version: version}, testimages.HostPlatform()))
	}
	held, err := r.Client().LeasesService().List(NSContext(r.Ctx), `labels."io.imagepin.lease"~="pull|use|collect"`)
	if err != nil || len(held) > 0 {
		r.T.Errorf("leases %v, %v", held, err)
	}
}

// SnapshotDirectory returns the directory of the top snapshot of an image in the default snapshotter.
func (r *Rig) SnapshotDirectory(ref string) string {
	r.T.Helper()
	return r.DirectoryIn(ref, "overlayfs")
}

// DirectoryIn returns the directory of the top snapshot of an image in a snapshotter.
func (r *Rig) DirectoryIn(ref, snapshotter string) string {
	r.T.Helper()
	resp, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: ref})
	if err != nil {
		r.T.Fatal(err)
	}
	sn := r.Client().SnapshotService(snapshotter)
	mounts, err := sn.View(NSContext(r.Ctx), "look", resp.Keys[0].ChainId)
	if err != nil {
		r.T.Fatal(err)
	}
	if err := sn.Remove(NSContext(r.Ctx), "look"); err != nil && !errdefs.IsNotFound(err) { // nothing held it
		r.T.Fatal(err)
	}
	dir := mounts[0].Source
	for _, option := range mounts[0].Options {
		if lower, ok := strings.CutPrefix(option, "lowerdir="); ok {
			dir, _, _ = strings.Cut(lower, ":")
		}
	}
	if !filepath.IsAbs(dir) {
		r.T.Fatalf("mounts %v", mounts)
	}
	return dir
}
