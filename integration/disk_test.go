package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// spoilings are what a disk does to the file of a blob, of which containerd's metadata knows nothing.
var spoilings = map[string]struct {
	do   func(path string) error
	deep bool // only reading shows it
}{
	"gone": {do: os.Remove},
	"cut": {do: func(path string) error {
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
		return os.Truncate(path, 7)
	}},
	"one bit flipped": {deep: true, do: func(path string) error {
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

// parts are the blobs of an image by what they are.
var parts = []string{"index", "manifest", "configuration", "layer"}

// blobs finds the digests of an image's parts for the default handler.
func (r *rig) blobs(ref string) map[string]digest.Digest {
	r.t.Helper()
	resp, err := r.control().Images(r.ctx, &api.ImagesRequest{RefGlob: ref, Handler: "runc"})
	if err != nil || len(resp.Keys) != 1 {
		r.t.Fatalf("keys of %s: %v, %v", ref, resp, err)
	}
	k := resp.Keys[0]
	b, err := content.ReadBlob(nsctx(r.ctx), r.Client().ContentStore(), ocispec.Descriptor{Digest: digest.Digest(k.Manifest)})
	if err != nil {
		r.t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		r.t.Fatal(err)
	}
	return map[string]digest.Digest{
		"index": digest.Digest(k.Root.Digest), "manifest": digest.Digest(k.Manifest), "configuration": digest.Digest(k.ImageId),
		"layer": m.Layers[len(m.Layers)-1].Digest,
	}
}

// blobFile is where containerd has a blob.
func (r *rig) blobFile(d digest.Digest) string {
	return r.Path("root", "io.containerd.content.v1.content", "blobs", d.Algorithm().String(), d.Encoded())
}

func (r *rig) spoil(how string, d digest.Digest) {
	r.t.Helper()
	if err := spoilings[how].do(r.blobFile(d)); err != nil {
		r.t.Fatal(err)
	}
}

// deepCheck makes a deep check, and gives what it found.
func (r *rig) deepCheck(repair bool) []*api.Finding {
	r.t.Helper()
	stream, err := r.control().DeepCheck(r.ctx, &api.DeepCheckRequest{Repair: repair, BytesPerSecond: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	var last *api.DeepCheckProgress
	for {
		m, err := stream.Recv()
		if err != nil {
			r.t.Fatal(err)
		}
		if m.Result == nil {
			last = m.Progress
			continue
		}
		if last == nil || last.Blobs != last.BlobsTotal || last.Bytes != last.BytesTotal || last.Snapshots != last.SnapshotsTotal || last.BytesTotal == 0 {
			r.t.Errorf("the check ended at %v", last)
		}
		return m.Result.Findings
	}
}

func (r *rig) checkNow(repair bool) []*api.Finding {
	r.t.Helper()
	resp, err := r.control().Check(r.ctx, &api.CheckRequest{Repair: repair})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.Findings
}

// wantWhole checks that nothing is damaged, that the image runs for both handlers, and that no lease of ours is left.
func (r *rig) wantWhole(ref, version string) {
	r.t.Helper()
	if found := r.deepCheck(false); len(found) > 0 {
		r.t.Errorf("a deep check finds %v", found)
	}
	for _, h := range []string{"runc", second} {
		r.pull(ref, h)
		r.wantRun(h, ref, line(testimages.Options{Version: version}, testimages.HostPlatform()))
	}
	held, err := r.Client().LeasesService().List(nsctx(r.ctx), `labels."io.imagepin.lease"~="pull|use|collect"`)
	if err != nil || len(held) > 0 {
		r.t.Errorf("leases %v, %v", held, err)
	}
}

// TestDisk spoils the file of each kind of blob in each way. A check finds it, and a deep check what only reading shows; a pull for another
// handler brings what is missing by itself; a repair does; and after a start nothing is said to be here that is not.
func TestDisk(t *testing.T) {
	t.Parallel()
	for how, s := range spoilings {
		for _, part := range parts {
			t.Run(part+" "+how, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, node.Options{Handlers: onNative})
				r.removePod(r.pod("runc"))
				r.removePod(r.pod(second))
				version := strings.ReplaceAll(part+" "+how, " ", "-")
				ref, _ := r.push("app:v1", testimages.Options{Version: version}, testimages.HostPlatform(), foreign)
				id := r.pull(ref, "runc")
				r.collect()

				r.spoil(how, r.blobs(ref)[part])
				r.wantFound(part, s.deep)
				if got := r.pull(ref, second); got != id {
					t.Errorf("a pull for another handler gives %s", got)
				}
				r.wantWhole(ref, version)

				r.spoil(how, r.blobs(ref)[part])
				found := r.wantFound(part, s.deep)
				if s.deep {
					found = r.deepCheck(true)
				} else {
					found = r.checkNow(true)
				}
				for _, f := range found {
					if !f.Repaired || f.Error != "" {
						t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
					}
				}
				r.wantWhole(ref, version)

				r.spoil(how, r.blobs(ref)[part])
				r.crash(nil)
				if part != "layer" && !s.deep {
					r.eventually("what is damaged is not said to be here", func() bool {
						return r.status(ref, "runc") == nil && r.status(ref, second) == nil && len(r.checkNow(false)) == 0
					})
				}
				if s.deep {
					r.deepCheck(true)
				}
				if got := r.pull(ref, "runc"); got != id {
					t.Errorf("a pull after the start gives %s", got)
				}
				if part == "layer" {
					r.checkNow(true)
				}
				r.wantWhole(ref, version)
			})
		}
	}
}

// wantFound checks that the damage of a part is found by a check, or by a deep one only.
func (r *rig) wantFound(part string, deep bool) []*api.Finding {
	r.t.Helper()
	found := r.checkNow(false)
	if deep {
		if len(found) > 0 {
			r.t.Errorf("found without reading: %v", found)
		}
		found = r.deepCheck(false)
	}
	if len(found) == 0 {
		r.t.Fatalf("the damage of the %s is not found", part)
	}
	for _, f := range found {
		if !strings.Contains(f.Problem, part) || f.Repair == "" {
			r.t.Errorf("%s: %s, %s", f.Subject, f.Problem, f.Repair)
		}
	}
	return found
}

// TestDiskOffline spoils an image while its registry cannot be reached: the error says what is true, nothing is taken from what is here, and
// when the registry is back, a repair works.
func TestDiskOffline(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	r.removePod(r.pod("runc"))
	r.removePod(r.pod(second))
	ref, _ := r.push("app:v1", testimages.Options{}, testimages.HostPlatform(), foreign)
	r.pull(ref, "runc")
	r.collect()
	layer := r.blobs(ref)["layer"]
	r.spoil("gone", layer)
	r.reg.Down()
	_, err := r.Pull(r.ctx, ref, second)
	if err == nil || strings.Contains(err.Error(), "push it again") || !strings.Contains(err.Error(), layer.String()) || !strings.Contains(err.Error(), "ContentDamaged") {
		t.Errorf("a pull without its registry: %v", err)
	}
	for _, f := range r.checkNow(true) {
		if f.Repaired || f.Error == "" {
			t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
		}
	}
	r.wantRun("runc", ref, line(testimages.Options{}, testimages.HostPlatform()))
	if err := r.reg.Up(); err != nil {
		t.Fatal(err)
	}
	if found := r.checkNow(true); len(found) != 1 || !found[0].Repaired {
		t.Errorf("a repair with the registry: %v", found)
	}
	r.wantWhole(ref, "")
}

// TestDiskSandboxImage spoils the sandbox image's configuration: pods start again after a restart, and after a repair without one.
func TestDiskSandboxImage(t *testing.T) {
	t.Parallel()
	for how := range spoilings {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{})
			pause := r.Options().SandboxImage
			r.removePod(r.pod("runc"))
			r.spoil(how, r.blobs(pause)["configuration"])
			for _, f := range r.deepCheck(true) {
				if !f.Repaired || f.Error != "" {
					t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
				}
			}
			r.removePod(r.pod("runc"))
			if spoilings[how].deep {
				return
			}
			r.spoil(how, r.blobs(pause)["configuration"])
			r.crash(nil)
			r.removePod(r.pod("runc"))
			if found := r.deepCheck(false); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
		})
	}
}

// snapshotDirectory finds where the default snapshotter has the top snapshot of an image.
func (r *rig) snapshotDirectory(ref string) string {
	r.t.Helper()
	resp, err := r.control().Inspect(r.ctx, &api.InspectRequest{Ref: ref})
	if err != nil {
		r.t.Fatal(err)
	}
	sn := r.Client().SnapshotService("overlayfs")
	mounts, err := sn.View(nsctx(r.ctx), "look", resp.Keys[0].ChainId)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := sn.Remove(nsctx(r.ctx), "look"); err != nil && !errdefs.IsNotFound(err) { // nothing held it
		r.t.Fatal(err)
	}
	dir := mounts[0].Source
	for _, option := range mounts[0].Options {
		if lower, ok := strings.CutPrefix(option, "lowerdir="); ok {
			dir, _, _ = strings.Cut(lower, ":")
		}
	}
	if !filepath.IsAbs(dir) {
		r.t.Fatalf("mounts %v", mounts)
	}
	return dir
}

// TestDiskSnapshot removes the directory of a snapshot: a deep check finds it, and a repair unpacks it again, but not while a container stands on
// it.
func TestDiskSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	ref, _ := r.push("app:v1", testimages.Options{}, testimages.HostPlatform())
	r.pull(ref, "runc")
	p := r.pod("runc")
	r.wantLine(p, node.ContainerOptions{Image: ref}, line(testimages.Options{}, testimages.HostPlatform()))
	dir := r.snapshotDirectory(ref)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if found := r.checkNow(false); len(found) > 0 {
		t.Errorf("a check that looks at no directories finds %v", found)
	}
	found := r.deepCheck(true)
	for _, f := range found {
		if f.Repaired || !strings.Contains(f.Problem, dir) || !strings.Contains(f.Error, "uses it") {
			t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
		}
	}
	if len(found) != 2 { // of the tag and of the digest
		t.Errorf("found %v", found)
	}
	r.removePod(p)
	for _, f := range r.deepCheck(true) {
		if !f.Repaired || f.Error != "" {
			t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
		}
	}
	r.wantRun("runc", ref, line(testimages.Options{}, testimages.HostPlatform()))
	if found := r.deepCheck(false); len(found) > 0 {
		t.Errorf("a deep check finds %v", found)
	}
}

// TestDiskRetained spoils what only a pin retains.
func TestDiskRetained(t *testing.T) {
	t.Parallel()
	for how := range spoilings {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{Extra: retainRules})
			ref, _ := r.push("pinned/app:v1", testimages.Options{}, testimages.HostPlatform())
			r.pull(ref, "runc")
			blobs := r.blobs(ref)
			r.remove(ref, "runc")
			r.collect()
			for _, part := range []string{"manifest", "configuration", "layer"} {
				r.spoil(how, blobs[part])
				found := r.deepCheck(true)
				if len(found) != 1 || !found[0].Repaired || found[0].Subject != blobs[part].String() || !strings.Contains(found[0].Problem, "a pin retains it") {
					t.Errorf("%s: found %v", part, found)
				}
			}
			if found := r.deepCheck(false); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
		})
	}
}

// TestDeepCheckInterrupted ends a deep check that reads very slowly: it leaves nothing.
func TestDeepCheckInterrupted(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	ref, _ := r.push("app:v1", testimages.Options{}, testimages.HostPlatform())
	r.pull(ref, "runc")
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream, err := r.control().DeepCheck(ctx, &api.DeepCheckRequest{BytesPerSecond: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.Result != nil || m.Progress.GetBytesTotal() == 0 {
		t.Fatalf("%v, %v", m, err)
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if ctx.Err() == nil || !strings.Contains(fmt.Sprint(err), "cancel") {
		t.Errorf("%v", err)
	}
	r.eventually("no lease is left", func() bool {
		held, err := r.Client().LeasesService().List(nsctx(r.ctx))
		return err == nil && len(held) == 0
	})
	if found := r.deepCheck(false); len(found) > 0 {
		t.Errorf("a deep check finds %v", found)
	}
}
