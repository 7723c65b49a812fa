package decide

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// orderFile has which pin decides for each combination of pins: integration/pictures checks its chart with it.
const orderFile = "testdata/order.json"

// combination are the pins that a reference has for a pod of a revision.
type combination struct {
	ByDigest    bool               `json:"byDigest,omitempty"` // the reference has a digest
	Locked      bool               `json:"locked,omitempty"`   // the lock of the node has the reference
	Cluster     bool               `json:"cluster,omitempty"`  // the node uses the Kubernetes API
	ImagePin    bool               `json:"imagePin,omitempty"` // the revision has an ImagePin
	Consistency policy.Consistency `json:"consistency"`
	Used        string             `json:"used,omitempty"` // the scope of the pin that a use has made: node or revision
	Set         string             `json:"set,omitempty"`  // the scope of the pin that an operator has set
	// Decides is the pin that decides: lock, ImagePin, node or revision; digest for a reference with a digest, or none.
	Decides string `json:"decides"`
}

// combinations returns all combinations. A scope has one pin.
func combinations() (all []combination) {
	scopes := []string{"", "node", "revision"}
	for i := range 1 << 4 {
		for _, consistency := range []policy.Consistency{policy.Off, policy.Node, policy.Workload} {
			for _, used := range scopes {
				for _, set := range scopes {
					if used != "" && used == set {
						continue
					}
					all = append(all, combination{
						ByDigest: i&1 != 0, Locked: i&2 != 0, Cluster: i&4 != 0, ImagePin: i&8 != 0,
						Consistency: consistency, Used: used, Set: set,
					})
				}
			}
		}
	}
	return all
}

// decides returns the pin that decides.
func (c combination) decides(t *testing.T) string {
	t.Helper()
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: c.Consistency})
	names := map[digest.Digest]string{}
	named := func(name string) ocispec.Descriptor {
		r := root(name)
		names[r.Digest] = name
		return r
	}
	pod := webPod("web-1-a")
	scopes := map[string]policy.Scope{"node": policy.NodeScope, "revision": e.Decider.policy().LabelScope(pod)}
	for by, in := range map[pin.By]string{pin.ByUse: c.Used, pin.ByOperator: c.Set} {
		if in != "" {
			_, err := e.pins.Move(e.ctx, e.id(scopes[in]), named(in), by, false)
			noError(t, err)
		}
	}
	if c.Locked {
		e.pins.SetLock([]pin.Pin{{ID: e.id(policy.LockScope), Root: named("lock"), By: pin.ByLock}}, nil)
	}
	if c.Cluster {
		shared := newFakeCluster()
		if c.ImagePin {
			shared.pins["uid-1 "+e.ref.String()] = named("ImagePin").Digest
		}
		e.join(shared, false)
	}
	ref := e.ref
	if c.ByDigest {
		var err error
		ref, err = reference.WithDigest(e.ref, roots["old"].Digest)
		noError(t, err)
	}
	held, err := e.PinOf(e.ctx, ref.String(), pod)
	noError(t, err)
	switch {
	case held != nil:
		return names[held.Root.Digest]
	case c.ByDigest:
		return "digest"
	}
	return "none"
}

// TestOrder checks which pin decides: that of the lock, then the ImagePin, then that in the scope of the rule, then that of an operator.
// IMAGEPIN_UPDATE_MATRIX=1 writes the file.
func TestOrder(t *testing.T) {
	var lines []string
	for _, c := range combinations() {
		c.Decides = c.decides(t)
		if want := c.want(); c.Decides != want {
			t.Errorf("%+v: %s decides, want %s", c, c.Decides, want)
		}
		line, err := json.Marshal(c)
		noError(t, err)
		lines = append(lines, string(line))
	}
	want := []byte("[\n" + strings.Join(lines, ",\n") + "\n]\n")
	if os.Getenv("IMAGEPIN_UPDATE_MATRIX") != "" {
		noError(t, os.WriteFile(orderFile, want, 0o644))
	}
	got, err := os.ReadFile(orderFile)
	noError(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s does not have the order: run this test with IMAGEPIN_UPDATE_MATRIX=1", orderFile)
	}
}

// want is what has to decide.
func (c combination) want() string {
	own := map[policy.Consistency]string{policy.Node: "node", policy.Workload: "revision"}[c.Consistency]
	shared := c.Cluster && c.Consistency == policy.Workload
	switch {
	case c.ByDigest:
		return "digest"
	case c.Locked:
		return "lock"
	case shared && c.ImagePin:
		return "ImagePin"
	case !shared && own != "" && (c.Used == own || c.Set == own):
		return own
	case c.Set != "":
		return c.Set
	}
	return "none"
}
