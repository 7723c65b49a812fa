package pin

import (
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestCheck damages records of pins, and checks that Check finds them and Repair repairs those of active pins.
func TestCheck(t *testing.T) {
	id := ID{Scope: policy.NodeScope, Ref: ref}
	for _, test := range []struct {
		name    string
		damage  func(t *testing.T, e *env)
		restart bool // after the damage
		problem string
		repair  string
		done    string
	}{
		{name: "no damage"},
		{
			"damaged", func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "one"}) }, true,
			`pin node/registry.example/team/app:1: version "one": invalid argument; it is ignored, and a new pin with this name replaces it`,
			ignore, Ignored,
		},
		{
			"damaged while it is active", func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "one"}) }, false,
			`pin node/registry.example/team/app:1: version "one": invalid argument; the active pin is different`,
			repairRecord, RecordRepaired,
		},
		{
			"newer", func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "2"}) }, true,
			"pin node/registry.example/team/app:1: version 2 is newer than 1: not implemented; its reference is not pulled",
			ignore, Ignored,
		},
		{
			"newer while it is active", func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelVersion: "2"}) }, false,
			"pin node/registry.example/team/app:1: version 2 is newer than 1: not implemented; the active pin is different",
			ignore, Ignored,
		},
		{
			"missing", func(t *testing.T, e *env) {
				if err := e.node.Images.Delete(namespaced(e.ctx), id.String()); err != nil {
					t.Fatal(err)
				}
			}, false, "its record is gone", repairRecord, RecordRepaired,
		},
		{
			"another digest", func(t *testing.T, e *env) {
				if _, err := e.node.Images.Update(namespaced(e.ctx), images.Image{Name: id.String(), Target: root("two")}, "target"); err != nil {
					t.Fatal(err)
				}
			}, false, fmt.Sprintf("its record has digest %s, but the active pin has %s", root("two").Digest, root("one").Digest), repairRecord, RecordRepaired,
		},
		{
			"another label", func(t *testing.T, e *env) { e.write(t, id, map[string]string{labelRetain: ""}) }, false,
			"its record differs from the active pin", repairRecord, RecordRepaired,
		},
		{
			"not an image", func(t *testing.T, e *env) {
				layer := root("one")
				layer.MediaType = ocispec.MediaTypeImageLayer
				if _, err := e.node.Images.Update(namespaced(e.ctx), images.Image{Name: id.String(), Target: layer}, "target"); err != nil {
					t.Fatal(err)
				}
			}, true, fmt.Sprintf(`it targets "application/vnd.oci.image.layer.v1.tar" (%s), which is neither an index nor a manifest`, root("one").Digest),
			ignore, Ignored,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, 0)
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			must(t)(e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: "registry.example/intact:1"}, root("intact"), ByUse, false))
			if test.damage != nil {
				test.damage(t, e)
			}
			if test.restart {
				e.reload(t)
			}
			wrote := e.wrote
			checked, findings, err := e.Check(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			wantEqual(t, "checked", checked, 2)
			wantEqual(t, "writes of a check", e.wrote-wrote, 0)
			if test.damage == nil {
				wantEqual(t, "findings", findings, []Finding{})
				return
			}
			if len(findings) != 1 {
				t.Fatalf("got findings %v, want 1", findings)
			}
			f := findings[0]
			wantEqual(t, "record", f.Record, id.String())
			wantEqual(t, "problem", f.Problem, test.problem)
			wantEqual(t, "repair", f.Repair, test.repair)
			done, err := e.Repair(e.ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			wantEqual(t, "done", done, test.done)
			_, findings, err = e.Check(e.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if repaired := len(findings) == 0; repaired != (test.done == RecordRepaired) {
				t.Errorf("findings after the repair: %v", findings)
			}
			if test.done != RecordRepaired {
				return
			}
			e.reload(t)
			p, ok := e.Get(id)
			wantEqual(t, "the pin after a restart", fmt.Sprint(ok, p.Root.Digest, p.Retain), fmt.Sprint(true, root("one").Digest, true))
		})
	}
}
