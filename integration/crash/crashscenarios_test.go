package crash

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// scenario is something that is killed at each failpoint it reaches.
type scenario struct {
	options node.Options
	// setup brings about where it begins, on a node that has nothing.
	setup func(*killRig)
	// op is killed, and later done again.
	op func(*killRig) error
	// after removes what another tool has left that was killed with it.
	after func(*killRig)
	// sometimes are the failpoints that depend on what containerd's own collection has done meanwhile: they need not be reached each time.
	sometimes []string
}

// anywhere are the handlers of all targets.
var anywhere = []string{"", testkit.Second, "foreign"}

func (c *killRig) pullEverywhere(ref string) {
	c.T.Helper()
	for _, h := range anywhere {
		c.MustPull(ref, h)
	}
}

var crashScenarios = map[string]scenario{
	"pull": {
		setup: func(c *killRig) { c.data("app:1", "1") },
		op:    func(c *killRig) error { return c.pulled(c.Reg.Ref("app:1"), "") },
	},
	"pull of another platform": {
		setup: func(c *killRig) { c.data("app:1", "1") },
		op:    func(c *killRig) error { return c.pulled(c.Reg.Ref("app:1"), "foreign") },
	},
	"pull for a second snapshotter": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup: func(c *killRig) {
			c.MustPull(c.data("app:1", "1"), "")
			c.Collect() // its layers, which the second snapshotter needs again
		},
		op: func(c *killRig) error { return c.pulled(c.Reg.Ref("app:1"), testkit.Second) },
	},
	"pull of a tag that has moved": {
		setup: func(c *killRig) {
			c.MustPull(c.data("app:1", "1"), "")
			c.data("app:1", "2")
		},
		op: func(c *killRig) error { return c.pulled(c.Reg.Ref("app:1"), "") },
	},
	"remove": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *killRig) error { return c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), "") },
	},
	"a record of the image ID after a removal": {
		setup: func(c *killRig) { c.data("app:1", "1") },
		op:    (*killRig).lateRecord,
		after: (*killRig).dropForeignLeases,
	},
	"remove for one handler": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *killRig) error { return c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), testkit.Second) },
	},
	"pull that pins and retains": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup:   func(c *killRig) { c.data("pinned/app:1", "1") },
		op:      func(c *killRig) error { return c.pulled(c.Reg.Ref("pinned/app:1"), "") },
	},
	"pin set": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op: func(c *killRig) error {
			repo, digest, _ := strings.Cut(c.pushedDigest("app:1"), "@")
			return c.command("pin", "set", "--retain", repo+":1", digest)
		},
	},
	"pin rm": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("pinned/app:1", "1")) },
		op: func(c *killRig) error {
			err := c.command("pin", "rm", c.Reg.Ref("pinned/app:1"))
			if err != nil && strings.Contains(err.Error(), "UnknownPin") {
				return nil // that is what is wanted
			}
			return err
		},
	},
	"refresh": {
		setup: func(c *killRig) {
			ref := c.data("pinned/app:1", "1")
			c.MustPull(ref, "")
			c.MustPull(ref, testkit.Second)
			c.data("pinned/app:1", "2")
		},
		op: func(c *killRig) error { return c.refreshed(c.Reg.Ref("pinned/app:1")) },
	},
	"adoption": {
		setup: func(c *killRig) {
			ref := c.data("app:1", "1")
			c.MustPull(ref, "")
			c.ctr("images", "export", "--local", "--platform", images.HostPlatform(), c.Path("app.tar"), ref)
			c.MustRemove(ref, "")
		},
		op: func(c *killRig) error {
			if _, err := c.Ctr(c.Ctx, "images", "import", c.Path("app.tar")); err != nil {
				return err
			}
			return c.until(c.Reg.Ref("app:1"), "runc", true)
		},
		after: (*killRig).dropForeignLeases,
	},
	"adoption of one more name": {
		setup: func(c *killRig) { c.MustPull(c.data("app:1", "1"), "") },
		op: func(c *killRig) error {
			if _, err := c.Ctr(c.Ctx, "images", "tag", "--force", c.Reg.Ref("app:1"), c.Reg.Ref("app:named")); err != nil {
				return err
			}
			return c.until(c.Reg.Ref("app:named"), "runc", true)
		},
		after: (*killRig).dropForeignLeases,
	},
	"tag removed by another tool": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *killRig) error { return c.removedByCtr(c.Reg.Ref("app:1")) },
	},
	"digest removed by another tool": {
		setup: func(c *killRig) { c.pullEverywhere(c.data("app:1", "1")) },
		op:    func(c *killRig) error { return c.removedByCtr(c.pushedDigest("app:1")) },
	},
	"repair of what a disk has damaged": {
		setup: func(c *killRig) {
			ref := c.data("app:1", "1")
			c.pullEverywhere(ref)
			blobs := c.Blobs(ref)
			c.Damage("cut", blobs["index"])
			c.Damage("gone", blobs["manifest"])
			c.Damage("cut", blobs["configuration"])
		},
		op: func(c *killRig) error { return c.command("check", "--deep", "--repair") },
	},
	"repair of a snapshot without its directory": {
		setup: func(c *killRig) {
			ref := c.data("app:1", "1")
			c.MustPull(ref, "")
			if err := os.RemoveAll(c.SnapshotDirectory(ref)); err != nil {
				c.T.Fatal(err)
			}
		},
		op: func(c *killRig) error { return c.command("check", "--deep", "--repair") },
		// Where containerd has collected the view of a check, it refuses to remove the snapshot below, and that is left to a collection.
		sometimes: []string{"collect.leased", "collect.done"},
	},
	"start after a killed pull": {
		setup: func(c *killRig) {
			ref := c.data("app:1", "1")
			c.killed("pull.unpacked", func() error { return c.pulled(ref, "") })
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
			c.pullEverywhere(c.data("app:1", "1"))
			c.arm("remove.release")
			if err := c.RemoveImage(c.Ctx, c.Reg.Ref("app:1"), testkit.Second); err == nil {
				c.T.Fatal("the removal was not killed")
			}
		},
		op: (*killRig).again,
	},
	"start with a label astray": {
		setup: func(c *killRig) {
			ref := c.data("app:1", "1")
			c.MustPull(ref, "")
			c.MustPull(c.data("app:2", "2"), "")
			c.copyKeys(c.pushedDigest("app:1"), c.pushedDigest("app:2"))
		},
		op: (*killRig).again,
	},
	"healing": {
		setup: func(c *killRig) { c.MustPull(c.data("app:1", "1"), "") },
		op: func(c *killRig) error {
			if err := c.loseSnapshots(); err != nil {
				return err
			}
			return c.until(c.Reg.Ref("app:1"), "runc", true)
		},
	},
	"dropping what cannot be healed": {
		options: node.Options{DiscardUnpackedLayers: true},
		setup: func(c *killRig) {
			c.MustPull(c.data("app:1", "1"), "")
			c.Collect() // or there are layers to unpack
		},
		op: func(c *killRig) error {
			if err := c.loseSnapshots(); err != nil {
				return err
			}
			return c.until(c.Reg.Ref("app:1"), "runc", false)
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

// again ends containerd, however it is, and starts it.
func (c *killRig) again() error {
	if err := c.Kill9(); err != nil {
		return err
	}
	return c.Start(c.Ctx)
}

// killed has containerd killed in a call, and starts it again.
func (c *killRig) killed(at string, call func() error) {
	c.T.Helper()
	c.arm(at)
	err := call()
	if got := c.died(); got != at {
		c.T.Fatalf("containerd died at %q, not %q: %v", got, at, err)
	}
	c.revive()
}

func (c *killRig) ctr(args ...string) {
	c.T.Helper()
	if _, err := c.Ctr(c.Ctx, args...); err != nil {
		c.T.Fatal(err)
	}
}

// pushedDigest is the reference by digest of what was pushed last under a tag.
func (c *killRig) pushedDigest(ref string) string {
	repo, _, _ := strings.Cut(ref, ":")
	return c.Reg.Ref(repo + "@" + c.digests[ref])
}

// dropForeignLeases deletes the leases that ctr could not delete: containerd died before it was done.
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

// lateRecord writes the record of an image ID after the image was removed, as containerd's CRI does when it handles an event late, and waits until
// imagepin has removed it.
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
			return fmt.Errorf("the record of %s stays: %v", id, err)
		}
		if _, err = records.Get(ctx, id); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return manager.Delete(ctx, l, leases.SynchronousDelete)
}

// removedByCtr removes a record, unless it is gone, and waits until the index has noticed.
func (c *killRig) removedByCtr(name string) error {
	if _, err := c.Ctr(c.Ctx, "images", "rm", name); err != nil {
		return err
	}
	return c.until(name, "runc", false)
}

// copyKeys copies the keys of one record to another.
func (c *killRig) copyKeys(from, to string) {
	c.T.Helper()
	store := c.Client().ImageService()
	img, err := store.Get(testkit.NSContext(c.Ctx), from)
	if err != nil {
		c.T.Fatal(err)
	}
	var fields []string
	add := ctdimages.Image{Name: to, Labels: map[string]string{}}
	for label, value := range img.Labels {
		if strings.HasPrefix(label, "io.imagepin.key.") {
			add.Labels[label] = value
			fields = append(fields, "labels."+label)
		}
	}
	if _, err := store.Update(testkit.NSContext(c.Ctx), add, fields...); err != nil {
		c.T.Fatal(err)
	}
}

// loseSnapshots removes every snapshot of the default snapshotter that is there.
func (c *killRig) loseSnapshots() error {
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
			// Healing goes on beside it: it may have removed one, or unpacked another on top.
			if err := sn.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
				return err
			}
		}
	}
}
