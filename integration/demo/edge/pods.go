package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// apps are the images of the pods, each with a Deployment in the manifests.
var apps = []string{"web", "agent"}

// tag is the tag of each image in the manifests.
const tag = "stable"

// ref returns the reference of an image in the manifests.
func (d *demo) ref(app string) string { return d.reg.Ref("edge/" + app + ":" + tag) }

// push moves the tags of all images to a version. The images share the layer of the program.
func (d *demo) push(ctx context.Context, version string) error {
	for _, app := range apps {
		idx, err := images.AppIndex(ctx, images.Options{Version: version, Env: []string{"APP=" + app}}, "linux/amd64", "linux/arm64")
		if err != nil {
			return err
		}
		if _, err := d.reg.Push("edge/"+app+":"+tag, idx); err != nil {
			return err
		}
	}
	return nil
}

// pods runs a pod for each image, as kubelet does after a boot, prints what their containers print, and removes the pods. The
// containers have to run a version.
func (d *demo) pods(ctx context.Context, version string) error {
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "   POD\tIMAGE\tPULL POLICY\tCONTAINER OUTPUT")
	want := images.Options{Version: version}.Line(0)
	for _, app := range apps {
		res, err := d.node.RunAsKubelet(ctx, node.KubeletPod{Image: d.ref(app), Always: true, PodOptions: node.PodOptions{Name: app}})
		if err != nil {
			return fmt.Errorf("pod %s: %w", app, err)
		}
		if res.Line != want {
			return fmt.Errorf("pod %s printed %q, want %q", app, res.Line, want)
		}
		// The rest of the line has the same values, from the root filesystem.
		line, _, _ := strings.Cut(res.Line, " rootfs=")
		fmt.Fprintf(w, "   %s\t%s\tAlways\t%s\n", app, d.ref(app), line)
	}
	fmt.Fprintln(w)
	return w.Flush()
}
