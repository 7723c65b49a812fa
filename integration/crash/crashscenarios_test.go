package crash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/offline"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// betweenRemovals are the failpoints of a repair that begins between the removals of two snapshots: it fails, records that the key is
// damaged, and collects what it leaves. If it loses what it has unpacked again and again, it asks the registry.
var betweenRemovals = []string{
	"collect.leased", "collect.done", "check.viewed", "store.write", "store.commit",
	"pull.chosen", "pull.unpacked", "pull.kept", "pull.made", "pull.recorded",
}

// scenario is an operation during which containerd is killed at each failpoint.
type scenario struct {
	options node.Options
	// second is the snapshotter of the handler [testkit.Second]. Empty means native.
	second string
	// setup prepares an empty node.
	setup func(*killRig)
	// op is the operation that is killed, and later repeated.
	op func(*killRig) error
	// after removes what another tool has left because of the kill.
	after func(*killRig)
	// sometimes lists the failpoints that not every run reaches, depending on containerd's garbage collection, or on when a
	// repair begins.
	sometimes []string
	// only lists the beginnings of the failpoints to kill at, if not at all of them.
	only []string
}

// allHandlers has one handler for each target.
var allHandlers = []string{"", testkit.Second, "foreign"}

func (c *killRig) pullForAll(ref string) {
	c.T.Helper()
	for _, h := range allHandlers {
		c.MustPull(ref, h)
	}
}

var crashScenarios = map[string]scenario{
	"pull": {
		setup: func(c *killRig) { c.pushData("app:1", "1") },
		op:    func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), "") },
	},
	"pull of another platform": {
		setup: func(c *killRig) { c.pushData("app:1", "1") },
		op:    func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), "foreign") },
	},
	"pull for a second snapshotter": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup: func(c *killRig) {
			c.MustPull(c.pushData("app:1", "1"), "")
			c.Collect() // deletes the layers, which the second snapshotter needs
		},
		op: func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), testkit.Second) },
	},
	"pull for guests": {
		options: node.Options{DiscardUnpackedLayers: true, Extra: testkit.GuestHandler},
		only:    []string{"guestpull."},
		setup:   func(c *killRig) { c.pushData("app:1", "1") },
		op:      func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), testkit.Second) },
	},
	"pull of a tag that has moved": {
		setup: func(c *killRig) {
			c.MustPull(c.pushData("app:1", "1"), "")
			c.pushData("app:1", "2")
		},
		op: func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), "") },
	},
	"remove": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("app:1", "1")) },
		op:    func(c *killRig) error { return c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), "") },
	},
	"late record of an image ID": {
		setup: func(c *killRig) { c.pushData("app:1", "1") },
		op:    (*killRig).lateRecord,
		after: (*killRig).dropForeignLeases,
	},
	"remove for one handler": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("app:1", "1")) },
		op:    func(c *killRig) error { return c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), testkit.Second) },
	},
	"pull that pins and retains": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup:   func(c *killRig) { c.pushData("pinned/app:1", "1") },
		op:      func(c *killRig) error { return c.pull(c.Reg.Ref("pinned/app:1"), "") },
	},
	"pin set": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("app:1", "1")) },
		op: func(c *killRig) error {
			repo, digest, _ := strings.Cut(c.pushedDigest("app:1"), "@")
			return c.command("pin", "set", "--retain", repo+":1", digest)
		},
	},
	"pin rm": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("pinned/app:1", "1")) },
		op: func(c *killRig) error {
			err := c.command("pin", "rm", c.Reg.Ref("pinned/app:1"))
			if err != nil && strings.Contains(err.Error(), "UnknownPin") {
				return nil // the pin is removed
			}
			return err
		},
	},
	"refresh": {
		setup: func(c *killRig) {
			ref := c.pushData("pinned/app:1", "1")
			c.MustPull(ref, "")
			c.MustPull(ref, testkit.Second)
			c.pushData("pinned/app:1", "2")
		},
		op: func(c *killRig) error { return c.refresh(c.Reg.Ref("pinned/app:1")) },
	},
	"adoption": {
		setup: func(c *killRig) { c.export("app:1", "1") },
		op:    func(c *killRig) error { return c.adopt("app:1") },
		after: (*killRig).dropForeignLeases,
	},
	"pull of an adopted tag that has moved": {
		setup: func(c *killRig) {
			c.export("app:1", "1")
			if err := c.adopt("app:1"); err != nil {
				c.T.Fatal(err)
			}
			c.pushData("app:1", "2")
		},
		op: func(c *killRig) error { return c.pull(c.Reg.Ref("app:1"), "") },
	},
	"adoption of one more name": {
		setup: func(c *killRig) { c.MustPull(c.pushData("app:1", "1"), "") },
		op: func(c *killRig) error {
			if _, err := c.Ctr(c.Ctx, "images", "tag", "--force", c.Reg.Ref("app:1"), c.Reg.Ref("app:named")); err != nil {
				return err
			}
			return c.awaitStatus(c.Reg.Ref("app:named"), "runc", true)
		},
		after: (*killRig).dropForeignLeases,
	},
	"tag removed by another tool": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("app:1", "1")) },
		op:    func(c *killRig) error { return c.removeByCtr(c.Reg.Ref("app:1")) },
	},
	"digest removed by another tool": {
		setup: func(c *killRig) { c.pullForAll(c.pushData("app:1", "1")) },
		op:    func(c *killRig) error { return c.removeByCtr(c.pushedDigest("app:1")) },
	},
	"repair of damaged files": {
		setup: func(c *killRig) {
			ref := c.pushData("app:1", "1")
			c.pullForAll(ref)
			blobs := c.Blobs(ref)
			c.Damage("cut", blobs["index"])
			c.Damage("gone", blobs["manifest"])
			c.Damage("cut", blobs["configuration"])
		},
		op: func(c *killRig) error { return c.command("check", "--deep", "--repair") },
	},
	"repair of a snapshot without its directory": {
		setup: func(c *killRig) {
			ref := c.pushData("app:1", "1")
			c.MustPull(ref, "")
			if err := os.RemoveAll(c.SnapshotDirectory(ref)); err != nil {
				c.T.Fatal(err)
			}
		},
		op: func(c *killRig) error { return c.command("check", "--deep", "--repair") },
		// If containerd has collected the view of a check, it refuses to remove the snapshot below. imagepin then removes
		// that one by garbage collection.
		sometimes: []string{"collect.leased", "collect.done"},
	},
	"repair of files below an exited container": {
		only: []string{"exchange."}, // the others are those of other repairs
		setup: func(c *killRig) {
			ref := c.pushData("app:1", "1")
			c.MustPull(ref, "")
			c.addExited(ref)
			c.TruncateAll(c.SnapshotDirectory(ref))
		},
		op: func(c *killRig) error {
			if err := c.command("check", "--deep", "--repair"); err != nil {
				return err
			}
			return c.removeExited()
		},
		after: func(c *killRig) { // the start repairs it
			if err := errors.Join(c.awaitStatus(c.Reg.Ref("app:1"), "runc", true), c.removeExited()); err != nil {
				c.T.Fatal(err)
			}
		},
	},
	"start after a killed pull": {
		setup: func(c *killRig) {
			ref := c.pushData("app:1", "1")
			c.killDuring("pull.unpacked", func() error { return c.pull(ref, "") })
			for _, purpose := range []string{"use", "collect"} {
				if _, err := c.Client().LeasesService().Create(testkit.NSContext(c.Ctx), leases.WithRandomID(), leases.WithLabel("io.imagepin.lease", purpose)); err != nil {
					c.T.Fatal(err)
				}
			}
		},
		op: func(c *killRig) error { return c.Restart(c.Ctx, nil) },
	},
	"start after a killed removal": {
		setup: func(c *killRig) {
			c.pullForAll(c.pushData("app:1", "1"))
			c.arm("remove.release")
			if err := c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), testkit.Second); err == nil {
				c.T.Fatal("the removal was not killed")
			}
		},
		op: (*killRig).killAndStart,
	},
	"first start of a boot": {
		setup: func(c *killRig) { c.MustPull(c.pushData("app:1", "1"), "") },
		op: func(c *killRig) error {
			if err := c.Kill9(); err != nil {
				return err
			}
			if err := os.Remove(c.BootFile()); err != nil && !os.IsNotExist(err) {
				return err
			}
			if err := c.Start(c.Ctx); err != nil {
				return err
			}
			_, err := c.Pull(c.Ctx, c.pushData("app:2", "2"), "") // waits for the collection
			return err
		},
	},
	"start with a label on the wrong record": {
		setup: func(c *killRig) {
			ref := c.pushData("app:1", "1")
			c.MustPull(ref, "")
			c.MustPull(c.pushData("app:2", "2"), "")
		},
		op: func(c *killRig) error {
			if err := c.Kill9(); err != nil { // while imagepin runs, it would remove the label itself
				return err
			}
			if err := c.copyKeys(c.pushedDigest("app:1"), c.pushedDigest("app:2")); err != nil {
				return err
			}
			return c.Start(c.Ctx)
		},
	},
	"repair of lost snapshots": {
		setup: func(c *killRig) { c.MustPull(c.pushData("app:1", "1"), "") },
		op: func(c *killRig) error {
			if err := c.removeSnapshots(); err != nil {
				return err
			}
			return c.awaitStatus(c.Reg.Ref("app:1"), "runc", true)
		},
		sometimes: betweenRemovals,
	},
	"drop of a key that cannot be repaired": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup: func(c *killRig) {
			c.Reg.SetFault(nil)
			c.MustPull(c.pushData("app:1", "1"), "")
			c.Collect() // deletes the layers, so that nothing can be unpacked
			c.Reg.SetFault(func(q registry.Request) *registry.Fault {
				if q.Kind == registry.Blob {
					return &registry.Fault{Status: http.StatusNotFound}
				}
				return nil
			})
		},
		op: func(c *killRig) error {
			if err := c.removeSnapshots(); err != nil {
				return err
			}
			return c.awaitStatus(c.Reg.Ref("app:1"), "runc", false)
		},
		sometimes: betweenRemovals,
	},
	"change of the default snapshotter": {
		setup: func(c *killRig) {
			if err := c.withDefault("overlayfs"); err != nil {
				c.T.Fatal(err)
			}
			c.MustPull(c.pushData("pinned/app:1", "1"), "")
		},
		op: func(c *killRig) error {
			if err := c.withDefault("native"); err != nil {
				return err
			}
			return c.awaitStatus(c.Reg.Ref("pinned/app:1"), "runc", true)
		},
		// What is released is collected in the background, sometimes once for several keys.
		sometimes: []string{"collect.leased", "collect.done"},
	},
	"apply of a bundle": {
		options: node.Options{DiscardUnpackedLayers: true},
		only:    []string{"apply.", "lock."},
		setup: func(c *killRig) {
			c.writeBundle("old", "1")
			if err := c.command("apply", c.Path("old.tar.zst")); err != nil {
				c.T.Fatal(err)
			}
			c.writeBundle("new", "2")
			c.Reg.Down()
		},
		op: func(c *killRig) error { return c.command("apply", c.Path("new.tar.zst")) },
	},
	"removal of a lock": {
		only: []string{"lock."},
		setup: func(c *killRig) {
			c.writeBundle("old", "1")
			if err := c.command("apply", c.Path("old.lock.yaml")); err != nil {
				c.T.Fatal(err)
			}
		},
		op: func(c *killRig) error {
			err := c.command("lock", "rm")
			if err != nil && strings.Contains(err.Error(), "UnknownLock") {
				return nil // the lock is removed
			}
			return err
		},
	},
	"RunPodSandbox": {
		setup: func(*killRig) {},
		op: func(c *killRig) error {
			_, err := c.RunPod(c.Ctx, node.PodOptions{Handler: testkit.Second})
			return err
		},
	},
}

// locked are the repositories of the images of a lock.
var locked = []string{"one", "two", "three"}

// writeBundle pushes a version of each image, and writes a lock and a bundle of them.
func (c *killRig) writeBundle(name, version string) {
	c.T.Helper()
	if err := c.Reg.Up(); err != nil {
		c.T.Fatal(err)
	}
	var refs []string
	for _, repo := range locked {
		refs = append(refs, c.pushData(repo+":1", repo+version))
	}
	text := c.lockText(refs)
	lock := c.Path(name + ".lock.yaml")
	if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	bundle := c.Path(name + ".tar.zst")
	if err := os.RemoveAll(bundle); err != nil {
		c.T.Fatal(err)
	}
	if err := c.command("bundle", lock, "-o", bundle); err != nil {
		c.T.Fatal(err)
	}
}

// lockText returns a lock of the last pushes of tags.
func (c *killRig) lockText(refs []string) string {
	text := "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n"
	for _, ref := range refs {
		repo := ref[:strings.LastIndex(ref, ":")]
		text += fmt.Sprintf("- image: %s@%s\n  annotations:\n    kbld.carvel.dev/id: %s\n", repo, c.digests[repo[strings.LastIndex(repo, "/")+1:]+":1"], ref)
	}
	return text
}

// killAndStart kills containerd, if it runs, and starts it.
func (c *killRig) killAndStart() error {
	if err := c.Kill9(); err != nil {
		return err
	}
	return c.Start(c.Ctx)
}

// killDuring kills containerd at a failpoint of a call, and starts it again.
func (c *killRig) killDuring(at string, call func() error) {
	c.T.Helper()
	c.arm(at)
	err := call()
	if got := c.diedAt(); got != at {
		c.T.Fatalf("containerd died at %q, want %q: %v", got, at, err)
	}
	c.revive()
}

func (c *killRig) ctr(args ...string) {
	c.T.Helper()
	if _, err := c.Ctr(c.Ctx, args...); err != nil {
		c.T.Fatal(err)
	}
}

// export pushes an image and writes it to a file, which adopt imports.
func (c *killRig) export(ref, version string) {
	c.T.Helper()
	name := c.pushData(ref, version)
	c.MustPull(name, "")
	c.ctr("images", "export", "--local", "--platform", images.HostPlatform(), c.Path("app.tar"), name)
	c.MustRemove(name, "")
}

// adopt imports an exported image with ctr and waits until its tag is available.
func (c *killRig) adopt(ref string) error {
	if _, err := c.Ctr(c.Ctx, "images", "import", c.Path("app.tar")); err != nil {
		return err
	}
	return c.awaitStatus(c.Reg.Ref(ref), "runc", true)
}

// pushedDigest returns the reference by digest of the last push of a tag.
func (c *killRig) pushedDigest(ref string) string {
	repo, _, _ := strings.Cut(ref, ":")
	return c.Reg.Ref(repo + "@" + c.digests[ref])
}

// dropForeignLeases deletes the leases that ctr could not delete because containerd died.
func (c *killRig) dropForeignLeases() {
	c.T.Helper()
	manager := c.Client().LeasesService()
	all, err := manager.List(testkit.NSContext(c.Ctx))
	if err != nil {
		c.T.Fatal(err)
	}
	for _, l := range all {
		if l.Labels["io.imagepin.lease"] != "" {
			continue
		}
		if err := manager.Delete(testkit.NSContext(c.Ctx), l); err != nil {
			c.T.Fatal(err)
		}
	}
}

// lateRecord creates the record of an image ID after the removal of the image, as containerd's CRI does when it handles
// an event late. It waits until imagepin has removed the record.
func (c *killRig) lateRecord() error {
	id, err := c.Pull(c.Ctx, c.Reg.Ref("app:1"), "")
	if err != nil {
		return err
	}
	records, ctx := c.Client().ImageService(), testkit.NSContext(c.Ctx)
	img, err := records.Get(ctx, id)
	if err != nil {
		return err
	}
	manager := c.Client().LeasesService()
	l, err := manager.Create(ctx, leases.WithRandomID())
	if err != nil {
		return err
	}
	if err := manager.AddResource(ctx, l, leases.Resource{ID: img.Target.Digest.String(), Type: "content"}); err != nil {
		return err
	}
	if err := c.RemoveImage(c.Ctx, id, ""); err != nil {
		return err
	}
	if _, err := records.Create(ctx, ctdimages.Image{Name: id, Target: img.Target, Labels: img.Labels}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !errdefs.IsNotFound(err) {
		select {
		case <-tick.C:
		case <-bounded.Done():
			return fmt.Errorf("the record of %s is not removed: %v", id, err)
		}
		if _, err = records.Get(ctx, id); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return manager.Delete(ctx, l, leases.SynchronousDelete)
}

// withDefault makes a snapshotter the default, and restarts containerd if another one is. The handler [testkit.Second] has
// the native snapshotter.
func (c *killRig) withDefault(snapshotter string) error {
	if c.Options().Snapshotter == snapshotter {
		return nil
	}
	return c.Restart(c.Ctx, func(o *node.Options) { o.Snapshotter = snapshotter })
}

// removeByCtr removes a record with ctr and waits until its name is no longer available.
func (c *killRig) removeByCtr(name string) error {
	if _, err := c.Ctr(c.Ctx, "images", "rm", name); err != nil {
		return err
	}
	return c.awaitStatus(name, "runc", false)
}

// copyKeys copies the labels of keys from one record to another while containerd is stopped.
func (c *killRig) copyKeys(from, to string) error {
	root, err := offline.Open(c.Ctx, c.Path("root"))
	if err != nil {
		return err
	}
	err = root.AtOnce(c.Ctx, func(ctx context.Context) error {
		img, err := root.Images.Get(ctx, from)
		if err != nil {
			return err
		}
		var fields []string
		add := ctdimages.Image{Name: to, Labels: map[string]string{}}
		for label, value := range img.Labels {
			if strings.HasPrefix(label, "io.imagepin.key.") {
				add.Labels[label] = value
				fields = append(fields, "labels."+label)
			}
		}
		_, err = root.Images.Update(ctx, add, fields...)
		return err
	})
	return errors.Join(err, root.Close())
}

// exited is the name of the snapshot of an exited container.
const exited = "exited"

// addExited creates the snapshot of an exited container on an image.
func (c *killRig) addExited(ref string) {
	c.T.Helper()
	resp, err := c.Control().Inspect(c.Ctx, &api.InspectRequest{Ref: ref})
	if err == nil {
		_, err = c.Client().SnapshotService("overlayfs").Prepare(testkit.NSContext(c.Ctx), exited, resp.Keys[0].ChainId,
			snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "now"}))
	}
	if err != nil {
		c.T.Fatal(err)
	}
}

// removeExited checks that an image has its files, and removes the exited container on it.
func (c *killRig) removeExited() error {
	b, err := os.ReadFile(filepath.Join(c.SnapshotDirectory(c.Reg.Ref("app:1")), "version"))
	if err != nil || string(b) != "1" {
		return fmt.Errorf("the file of the image has %q, %w", b, err)
	}
	err = c.Client().SnapshotService("overlayfs").Remove(testkit.NSContext(c.Ctx), exited)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeSnapshots removes all snapshots of the default snapshotter.
func (c *killRig) removeSnapshots() error {
	ctx, sn := testkit.NSContext(c.Ctx), c.Client().SnapshotService("overlayfs")
	for {
		var names, parents []string
		if err := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			names, parents = append(names, i.Name), append(parents, i.Parent)
			return nil
		}); err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if slices.Contains(parents, name) {
				continue
			}
			// A concurrent repair may have removed this snapshot, or unpacked another one on top of it.
			if err := sn.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
				return err
			}
		}
	}
}
