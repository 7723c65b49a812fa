package pin

import (
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// write changes labels of a pin's record, as another tool or release does.
func (e *env) write(t *testing.T, id ID, labels map[string]string) {
	t.Helper()
	img := images.Image{Name: id.String(), Labels: labels}
	var fields []string
	for label := range labels {
		fields = append(fields, "labels."+label)
	}
	if _, err := e.node.Images.Update(namespaced(e.ctx), img, fields...); err != nil {
		t.Fatal(err)
	}
}

func (e *env) labels(t *testing.T, id ID) map[string]string {
	t.Helper()
	img, err := e.node.Images.Get(namespaced(e.ctx), id.String())
	if err != nil {
		t.Fatal(err)
	}
	return img.Labels
}

// TestPinOfNewerRelease writes a pin of a newer version, before and while this release is running. The pin retains its
// content and is not overwritten. An operator can remove it.
func TestPinOfNewerRelease(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
	e.write(t, id, map[string]string{labelVersion: "2"})
	if _, err := e.Move(e.ctx, id, root("two"), ByUse, false); !errdefs.IsNotImplemented(err) {
		t.Errorf("Move of a pin of a newer release: got %v, want a NotImplemented error", err)
	}
	p, _ := e.Get(id)
	wantEqual(t, "the pin in memory", p.Root.Digest, root("one").Digest)
	e.reload(t)
	wantRefused(t, e, id)
	wantEqual(t, "retains", e.Retains(root("one").Digest), true)
	if err := e.CheckReadable(ID{Scope: "workload/shop/a=b", Ref: ref}); err != nil {
		t.Errorf("a scope without a pin: %v", err)
	}
	e.notified = nil
	p = must(t)(e.Remove(e.ctx, id))
	wantEqual(t, "removed", p.Root.Digest, root("one").Digest)
	wantEqual(t, "notified", e.notified, []string{"removed " + ref})
	wantEqual(t, "retains", e.Retains(root("one").Digest), false)
	wantEqual(t, "unreadable", len(e.ignored), 0)
	if _, err := e.Remove(e.ctx, id); !errdefs.IsNotFound(err) {
		t.Errorf("second Remove: got %v, want a NotFound error", err)
	}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("two"), ByUse, false))
}

// TestUnknownLabelsStay writes a pin in all ways. Labels of later releases and other tools stay. Obsolete labels of
// this release are removed.
func TestUnknownLabelsStay(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
	others := map[string]string{"io.imagepin.pin.later": "fact", "example.com/note": "kept"}
	e.write(t, id, others)
	named := mustParse(t, ref)
	wantOthers := func(after string) {
		t.Helper()
		labels := e.labels(t, id)
		for label, value := range others {
			wantEqual(t, label+" after "+after, labels[label], value)
		}
	}
	if err := e.Prove(e.ctx, named, root("one").Digest, Proof{MAC: "mac"}); err != nil {
		t.Fatal(err)
	}
	wantOthers("a proof")
	if err := e.RecordDrift(e.ctx, id, root("two").Digest); err != nil {
		t.Fatal(err)
	}
	wantOthers("a drift")
	must(t)(e.Move(e.ctx, id, root("two"), ByOperator, false))
	wantOthers("a move")
	labels := e.labels(t, id)
	for _, obsolete := range []string{labelDrift, labelRetain, "io.imagepin.proof.mac"} {
		if value, ok := labels[obsolete]; ok {
			t.Errorf("obsolete label %s was not removed: %q", obsolete, value)
		}
	}
	before, _ := e.Get(id)
	e.reload(t)
	after, _ := e.Get(id)
	wantEqual(t, "record after a restart", recordOf(t, after), recordOf(t, before))

	// A new pin replaces a damaged pin and keeps the labels of others.
	e.write(t, id, map[string]string{labelVersion: "one"})
	e.reload(t)
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("three"), ByUse, false))
	wantOthers("damage")
	e.reload(t)
	after, _ = e.Get(id)
	wantEqual(t, "root", after.Root.Digest, root("three").Digest)
	if after.By != ByUse || len(after.History) > 0 {
		t.Errorf("the new pin has fields of the damaged pin: %+v", after)
	}
}

// recordOf returns the record of a pin.
func recordOf(t *testing.T, p Pin) images.Image {
	t.Helper()
	img, err := p.record()
	if err != nil {
		t.Fatal(err)
	}
	return img
}
