package repair

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// damageRig is a rig with an image that was pulled for three targets.
type damageRig struct {
	*testkit.Rig
	opts             testimages.Options
	tag, digest      string
	ids              map[string]string    // by handler
	pods             map[string]*node.Pod // by handler
	root             digest.Digest
	manifest, config map[string]digest.Digest // by handler
	chain            string                   // of the node's platform
}

// damages are the kinds of damage that other tools, an operator or a disk can do to an image, with the handlers for
// which the tag and the digest stay available, or are available again soon, without a registry.
var damages = map[string]struct {
	discard bool
	second  string // another snapshotter of the handler testkit.Second than native
	do      func(*damageRig)
	tag     []string // handlers
	digest  []string
}{
	"snapshot removed, layers on the node": {
		do:  func(k *damageRig) { k.removeSnapshot("overlayfs") },
		tag: allHandlers, digest: allHandlers,
	},
	"snapshot of another handler removed, layers on the node": {
		do:  func(k *damageRig) { k.removeSnapshot("native") },
		tag: allHandlers, digest: allHandlers,
	},
	"EROFS snapshot of another handler removed, layers on the node": {
		second: node.EROFS,
		do:     func(k *damageRig) { k.removeSnapshot(node.EROFS) },
		tag:    allHandlers, digest: allHandlers,
	},
	"EROFS snapshot removed, layers discarded": {
		second: node.EROFS, discard: true,
		do:  func(k *damageRig) { k.removeSnapshot(node.EROFS) },
		tag: []string{"runc", "foreign"}, digest: []string{"runc", "foreign"},
	},
	"snapshot removed, layers discarded": {
		discard: true,
		do:      func(k *damageRig) { k.removeSnapshot("native") },
		tag:     []string{"runc", "foreign"}, digest: []string{"runc", "foreign"},
	},
	"index deleted": {
		do:  func(k *damageRig) { k.deleteBlob(k.root) },
		tag: []string{"foreign"}, digest: []string{"foreign"},
	},
	"manifest deleted": {
		do:  func(k *damageRig) { k.deleteBlob(k.manifest["runc"]) },
		tag: []string{"foreign"}, digest: []string{"foreign"},
	},
	"configuration deleted": {
		do:  func(k *damageRig) { k.deleteBlob(k.config["runc"]) },
		tag: []string{"foreign"}, digest: []string{"foreign"},
	},
	"configuration of the other platform deleted": {
		do:  func(k *damageRig) { k.deleteBlob(k.config["foreign"]) },
		tag: []string{"runc", testkit.Second}, digest: []string{"runc", testkit.Second},
	},
	"all labels removed": {
		do: func(k *damageRig) {
			for _, i := range k.records() {
				i.Labels = map[string]string{"io.example": "theirs"}
				k.update(i, "labels")
			}
		},
		tag: allHandlers, digest: allHandlers,
	},
	"record of the tag deleted": {
		do:  func(k *damageRig) { k.delete(k.tag) },
		tag: []string{"foreign"}, digest: allHandlers,
	},
	"record of the digest deleted": {
		do:  func(k *damageRig) { k.delete(k.digest) },
		tag: allHandlers, digest: []string{"foreign"},
	},
	"record of the digest targets another image": {
		do: func(k *damageRig) {
			other, err := k.Client().ImageService().Get(testkit.NSContext(k.Ctx), k.Options().SandboxImage)
			k.must(err)
			k.update(images.Image{Name: k.digest, Target: other.Target}, "target")
		},
		tag: allHandlers, digest: []string{"foreign"},
	},
	"record of the ID deleted": {
		do:  func(k *damageRig) { k.delete(k.ids["runc"]) },
		tag: allHandlers, digest: allHandlers,
	},
	"key on two records": {
		do: func(k *damageRig) {
			from, err := k.Client().ImageService().Get(testkit.NSContext(k.Ctx), k.digest)
			k.must(err)
			for label, value := range from.Labels {
				if strings.HasPrefix(label, "io.imagepin.key.") {
					k.label(k.tag, label, value)
				}
			}
		},
		tag: allHandlers, digest: allHandlers,
	},
	"labels that cannot be read": {
		do: func(k *damageRig) {
			k.label(k.tag, "io.imagepin.key.0123456789abcdef", `{"v":99,"ref":"of a later version"}`)
			k.label(k.digest, "io.imagepin.key.fedcba9876543210", "{damaged")
		},
		tag: allHandlers, digest: allHandlers,
	},
}

// allHandlers are those that the image of a damageRig is pulled for.
var allHandlers = []string{"runc", testkit.Second, "foreign"}

// TestDamage damages an image while imagepin runs, and while it does not. Keys that are still listed run without a
// registry, also after another restart. A pull makes the other keys ready again.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, c := range damages {
		for _, stopped := range []bool{false, true} {
			when := "running"
			if stopped {
				when = "stopped"
			}
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				k := newDamageRig(t, cmp.Or(c.second, "native"), c.discard)
				k.Reg.Down()
				if stopped {
					k.KillAndRestart(func(o *node.Options) { o.Binary = node.Stock })
				}
				c.do(k)
				if stopped {
					k.KillAndRestart(func(o *node.Options) { o.Binary = node.Ours })
				}
				k.wantPresent(c.tag, c.digest)
				k.KillAndRestart(nil)
				k.wantPresent(c.tag, c.digest)
				if err := k.Reg.Up(); err != nil {
					t.Fatal(err)
				}
				for h, id := range k.ids {
					if got := k.MustPull(k.tag, h); got != id {
						t.Errorf("handler %s: another pull returned %s, want %s", h, got, id)
					}
				}
				k.wantPresent(allHandlers, allHandlers)
				k.wantOneRecordPerKey()
			})
		}
	}
}

func newDamageRig(t *testing.T, second string, discard bool) *damageRig {
	k := &damageRig{
		ids: map[string]string{}, pods: map[string]*node.Pod{}, manifest: map[string]digest.Digest{}, config: map[string]digest.Digest{},
		Rig: testkit.NewRig(t, testkit.WithSecond(second, node.Options{
			DiscardUnpackedLayers: discard, Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
		})),
	}
	k.tag, k.digest = k.Push("app:v1", k.opts, testimages.HostPlatform(), testkit.Foreign)
	for _, h := range allHandlers {
		k.ids[h] = k.MustPull(k.tag, h)
		k.config[h] = testkit.MustDigest(t, k.ids[h])
		k.pods[h] = k.MustPod(h)
	}
	k.Collect()
	idx := testkit.AppIndex(t, k.opts, testimages.HostPlatform(), testkit.Foreign)
	m, err := idx.IndexManifest()
	k.must(err)
	d, err := idx.Digest()
	k.must(err)
	k.root = testkit.MustDigest(t, d.String())
	for i, h := range []string{"runc", "foreign"} {
		k.manifest[h] = testkit.MustDigest(t, m.Manifests[i].Digest.String())
	}
	info, err := k.Client().ContentStore().Info(testkit.NSContext(k.Ctx), k.config["runc"])
	k.must(err)
	k.chain = info.Labels["containerd.io/gc.ref.snapshot.overlayfs"]
	return k
}

func (k *damageRig) must(err error) {
	k.T.Helper()
	if err != nil {
		k.T.Fatal(err)
	}
}

func (k *damageRig) removeSnapshot(snapshotter string) {
	k.T.Helper()
	k.must(k.Client().SnapshotService(snapshotter).Remove(testkit.NSContext(k.Ctx), k.chain))
}

// deleteBlob deletes a blob: its file first, because a repair would find that.
func (k *damageRig) deleteBlob(d digest.Digest) {
	k.T.Helper()
	k.must(os.Remove(k.BlobFile(d)))
	k.must(k.Client().ContentStore().Delete(testkit.NSContext(k.Ctx), d))
}

// records returns the records of the image, without those of the sandbox image.
func (k *damageRig) records() []images.Image {
	k.T.Helper()
	all, err := k.Client().ImageService().List(testkit.NSContext(k.Ctx))
	k.must(err)
	return slices.DeleteFunc(all, func(i images.Image) bool {
		return !strings.Contains(i.Name, "/app") && i.Name != k.ids["runc"] && i.Name != k.ids["foreign"]
	})
}

func (k *damageRig) update(i images.Image, fields ...string) {
	k.T.Helper()
	_, err := k.Client().ImageService().Update(testkit.NSContext(k.Ctx), i, fields...)
	k.must(err)
}

func (k *damageRig) label(record, name, value string) {
	k.T.Helper()
	k.update(images.Image{Name: record, Labels: map[string]string{name: value}}, "labels."+name)
}

func (k *damageRig) delete(record string) {
	k.T.Helper()
	k.must(k.Client().ImageService().Delete(testkit.NSContext(k.Ctx), record))
}

// wantPresent waits until the tag and the digest are available for these handlers only, and runs the tag for them.
func (k *damageRig) wantPresent(tag, byDigest []string) {
	k.T.Helper()
	for ref, handlers := range map[string][]string{k.tag: tag, k.digest: byDigest} {
		for h, id := range k.ids {
			want := ""
			if slices.Contains(handlers, h) {
				want = id
			}
			testkit.Eventually(k.T, "ImageStatus "+ref+" for "+h+" returns \""+want+"\"", func(ctx context.Context) (bool, error) {
				img, err := k.ImageStatus(ctx, ref, h)
				return img.GetId() == want, err
			})
		}
	}
	platform := map[string]string{"runc": testimages.HostPlatform(), testkit.Second: testimages.HostPlatform(), "foreign": testkit.Foreign}
	for _, h := range tag {
		k.WantRunIn(k.pods[h], k.tag, testkit.Line(k.opts, platform[h]))
	}
}

// wantOneRecordPerKey fails the test if several records have a label of the same key, or if an unreadable label was
// removed.
func (k *damageRig) wantOneRecordPerKey() {
	k.T.Helper()
	on := make(map[string][]string)
	for _, i := range k.records() {
		for label := range maps.Keys(i.Labels) {
			if strings.HasPrefix(label, "io.imagepin.key.") {
				on[label] = append(on[label], i.Name)
			}
		}
	}
	for label, names := range on {
		if len(names) > 1 {
			k.T.Errorf("label %s is on several records: %q", label, names)
		}
	}
	if strings.Contains(k.T.Name(), "cannot_be_read") && (on["io.imagepin.key.0123456789abcdef"] == nil || on["io.imagepin.key.fedcba9876543210"] == nil) {
		k.T.Errorf("unreadable labels were removed: got %v", on)
	}
}

// TestRepairOfRemovedImage removes a snapshot and the records of its image. The repair does not bring the image back,
// and leaves no lease.
func TestRepairOfRemovedImage(t *testing.T) {
	t.Parallel()
	k := newDamageRig(t, "native", false)
	k.removeSnapshot("overlayfs")
	for _, i := range k.records() {
		if err := k.Client().ImageService().Delete(testkit.NSContext(k.Ctx), i.Name); err != nil {
			t.Logf("record %s: %v", i.Name, err) // imagepin may have removed it with the keys
		}
	}
	k.Eventually("the content and the records of the image are gone", func() bool {
		k.Collect()
		_, content := k.MustState().Content[node.Namespace+"/"+k.root.String()]
		return !content && len(k.records()) == 0
	})
	k.Eventually("no lease of imagepin is left", func() bool {
		held, err := k.Client().LeasesService().List(testkit.NSContext(k.Ctx))
		k.must(err)
		return !slices.ContainsFunc(held, func(l leases.Lease) bool { return l.Labels["io.imagepin.lease"] != "" })
	})
}
