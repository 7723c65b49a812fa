package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// sandboxTag is the sandbox image.
const sandboxTag = "pause:3.10"

// failpoint is where the node loses power: after the first image of the update is ready for the node.
const failpoint = "apply.made"

// bundle is the first step. It does not use the node, except for a directory.
func (d *demo) bundle(ctx context.Context) (err error) {
	if d.reg, err = registry.New(); err != nil {
		return err
	}
	pause, err := images.PauseIndex(ctx, "linux/amd64", "linux/arm64")
	if err != nil {
		return err
	}
	if _, err := d.reg.Push(sandboxTag, pause); err != nil {
		return err
	}
	if err := d.createNode(); err != nil {
		return err
	}
	d.say("   registry   %s: edge/web, edge/agent and the sandbox image, for two platforms", d.reg.Host())
	d.say("   root       %s, which has all files of the node, also those in /var and /run below\n", d.node.Root())
	if err := d.writeManifests(); err != nil {
		return err
	}
	if err := d.push(ctx, "v1"); err != nil {
		return err
	}
	err = d.all(ctx,
		"grep image: edge.yaml",
		"imagepin lock -f edge.yaml --sandbox-image "+d.reg.Ref(sandboxTag)+" -o v1.lock.yaml",
		"imagepin bundle v1.lock.yaml --platform "+images.HostPlatform()+" -o v1.tar.zst",
		"imagepin bundle verify v1.tar.zst",
	)
	if err != nil {
		return err
	}
	if err := d.push(ctx, "v2"); err != nil {
		return err
	}
	d.say("   Both tags move to v2. The second bundle has only what nodes with the first one lack:\n")
	err = d.all(ctx,
		"imagepin lock -f edge.yaml --sandbox-image "+d.reg.Ref(sandboxTag)+" -o v2.lock.yaml",
		"imagepin bundle v2.lock.yaml --since v1.lock.yaml --platform "+images.HostPlatform()+" -o v2.tar.zst",
		"ls -s --block-size=K *.tar.zst",
	)
	d.reg.Down()
	d.say("   The registry stops, for the rest of the demo.")
	return err
}

// all runs commands that have to succeed.
func (d *demo) all(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		if err := d.show(ctx, 0, c); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) writeManifests() error {
	text := ""
	for _, app := range apps {
		text += fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
      - name: %[1]s
        image: %[2]s
        imagePullPolicy: Always
`, app, d.ref(app))
	}
	return os.WriteFile(filepath.Join(d.shell.Dir, "edge.yaml"), []byte(text), 0o644)
}

// createNode creates the node, and does not start it. Its containerd has failpoints until the power loss.
func (d *demo) createNode() (err error) {
	d.node, err = node.New(node.Options{
		Mode: node.Plugin, Binary: node.Ours + "-failpoints", SandboxImage: d.reg.Ref(sandboxTag), LogLevel: "info",
		Extra: `
[plugins."io.containerd.imagepin.v1.images"]
locks_directory = "{root}/locks.d"
bundles_directory = "{root}/bundles"
`,
	})
	if err != nil {
		return err
	}
	env := func(o *node.Options) { o.Env = []string{"IMAGEPIN_FAILPOINT=@" + d.node.Path("failpoint")} }
	if err := d.node.Prepare(env); err != nil {
		return err
	}
	return d.prepareShell()
}

// boot is the second step.
func (d *demo) boot(ctx context.Context) error {
	err := d.all(ctx,
		"cp v1.tar.zst "+bundlesDirectory+"/.v1.tar.zst",
		"mv "+bundlesDirectory+"/.v1.tar.zst "+bundlesDirectory+"/v1.tar.zst",
	)
	if err != nil {
		return err
	}
	if err := d.node.Start(ctx); err != nil {
		return err
	}
	version, err := d.node.Client().Version(ctx)
	if err != nil {
		return err
	}
	d.say("   containerd %s starts, and applies the bundle:\n", version.Version)
	if err := d.applied(ctx, "v1.lock.yaml"); err != nil {
		return err
	}
	if err := d.pods(ctx, "v1"); err != nil {
		return err
	}
	return d.show(ctx, 0, "imagepin lock status --expect v1.lock.yaml")
}

// applied waits until the node has a lock.
func (d *demo) applied(ctx context.Context, lock string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := d.shell.Must(ctx, "imagepin lock status --expect "+lock); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s is applied: %w", lock, context.Cause(ctx))
		}
	}
}

// losePower is the third step.
func (d *demo) losePower(ctx context.Context) error {
	if err := os.WriteFile(d.node.Path("failpoint"), []byte(failpoint), 0o600); err != nil {
		return err
	}
	d.say("   This containerd is built with failpoints: it dies when the first image of the update is ready.\n")
	if err := d.show(ctx, 1, "imagepin apply v2.tar.zst"); err != nil {
		return err
	}
	if err := d.node.Wait(ctx); err == nil {
		return errors.New("containerd exited without an error")
	}
	if err := d.node.PowerLoss(); err != nil {
		return err
	}
	d.say("   No process of the node is left, also no container. The disk stays, with what the kernel had not written yet:")
	d.say("   this shows what a node without its processes keeps. make test-power cuts the power of disks.")
	return nil
}

// powerReturns is the fourth step.
func (d *demo) powerReturns(ctx context.Context) error {
	if err := d.node.Prepare(func(o *node.Options) { o.Binary = node.Ours }); err != nil {
		return err
	}
	if err := d.reboot(ctx, "v1"); err != nil {
		return err
	}
	d.say("   The images of the update that were ready stay, so the next apply has less to do.")
	return nil
}

// reboot starts the node after a power loss, without the pods that ran before, and runs pods of a version.
func (d *demo) reboot(ctx context.Context, version string) error {
	if err := d.node.Start(ctx); err != nil {
		return err
	}
	if err := d.node.RemovePods(ctx); err != nil {
		return err
	}
	if err := d.pods(ctx, version); err != nil {
		return err
	}
	return d.show(ctx, 0, "imagepin lock status --expect "+version+".lock.yaml")
}

// update is the fifth step.
func (d *demo) update(ctx context.Context) error {
	if err := d.show(ctx, 0, "imagepin apply v2.tar.zst"); err != nil {
		return err
	}
	d.say("   The pods from before the update run v1 until they are replaced:\n")
	if err := d.show(ctx, 10, "imagepin lock status"); err != nil {
		return err
	}
	if err := d.node.RemovePods(ctx); err != nil {
		return err
	}
	if err := d.pods(ctx, "v2"); err != nil {
		return err
	}
	return d.show(ctx, 0, "imagepin lock status --expect v2.lock.yaml")
}

// rollback is the sixth step.
func (d *demo) rollback(ctx context.Context) error {
	if err := d.show(ctx, 0, "imagepin rollback"); err != nil {
		return err
	}
	if err := d.node.PowerLoss(); err != nil {
		return err
	}
	d.say("   After a reboot:\n")
	if err := d.reboot(ctx, "v1"); err != nil {
		return err
	}
	return d.all(ctx, "imagepin check --deep")
}
