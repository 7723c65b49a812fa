package main

import (
	"context"
	"fmt"
	"strconv"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
)

// pinnedPods is the part of the costs of the fifth step.
const pinnedPods = "pods of two revisions"

// revision is a revision of a Deployment, whose pods have the default handler.
type revision struct {
	version string // the version of the tag at its first pod
	hash    string // the value of its label
	pods    []replica
}

// replica is a pod of a revision.
type replica struct {
	container *node.Container // or nil
	err       error           // why there is no container
}

func (r *revision) add(c *node.Container, err error) { r.pods = append(r.pods, replica{c, err}) }

// labels are the labels that the Deployment controller sets on the pods of a revision.
func (r *revision) labels() map[string]string { return map[string]string{hashLabel: r.hash} }

const hashLabel = "pod-template-hash"

// scope is the scope of the pin of a revision.
func (r *revision) scope() string { return "workload/default/" + hashLabel + "=" + r.hash }

// newest returns the latest revision.
func (d *demo) newest() *revision { return d.revisions[len(d.revisions)-1] }

// pin is the fifth step.
func (d *demo) pin(ctx context.Context) error {
	if d.noPods != nil {
		d.say("   Skipped: pods cannot run on this machine.")
		return nil
	}
	h := d.handlers[0]
	d.say("   The pods of %s belong to a Deployment: that of step 3 to its revision 1. The node now has %s for %s.", h.name, h.version, h.name)
	d.runReplica(ctx, d.revisions[0])
	d.revisions = append(d.revisions, &revision{version: h.version, hash: "rev2"})
	d.runReplica(ctx, d.newest())
	d.count(pinnedPods)
	return d.deployment(ctx)
}

// runReplica runs another pod of a revision.
func (d *demo) runReplica(ctx context.Context, r *revision) {
	h := d.handlers[0]
	c, err := d.startPod(ctx, h, r.hash+"-"+strconv.Itoa(len(r.pods)+1), r.labels())
	r.add(c, err)
}

// deployment prints the pin of each revision and what its pods run, and checks them.
func (d *demo) deployment(ctx context.Context) error {
	pins, err := d.pins(ctx)
	if err != nil {
		return err
	}
	h := d.handlers[0]
	t := table{header: []string{"REVISION", "POD", "PIN", "CONTAINER OUTPUT"}}
	for i, r := range d.revisions {
		pin := "none"
		if !d.stock {
			pin = d.cell(h, "pin", d.named(pins[r.scope()]), d.named(d.digests[r.version].String()))
		}
		for j, p := range r.pods {
			output := "no pod"
			if p.container != nil {
				output = d.output(ctx, p.container, h, r.version, &t)
			}
			t.rows = append(t.rows, []string{strconv.Itoa(i + 1), strconv.Itoa(j + 1), pin, output})
		}
	}
	t.show(d)
	return nil
}

// pins returns the pinned digest of the tag for each scope.
func (d *demo) pins(ctx context.Context) (map[string]string, error) {
	if d.stock {
		return nil, nil
	}
	resp, err := api.NewControlClient(d.node.Conn()).Pins(ctx, &api.PinsRequest{RefGlob: d.ref()})
	if err != nil {
		return nil, fmt.Errorf("pins: %w", err)
	}
	pins := map[string]string{}
	for _, p := range resp.Pins {
		pins[p.Scope] = p.Root.GetDigest()
	}
	return pins, nil
}
