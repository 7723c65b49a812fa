package decide

import (
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestOfDigest returns the entries under a digest before those under the tag.
func TestOfDigest(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.put(t, "new", otherTarget, imagepin.SourcePull, nil, 1)
	e.put(t, "old", ownTarget, imagepin.SourcePull, nil, 2)
	byDigest := e.byDigest(t, "old")
	got := OfDigest(e.images, e.ref, roots["old"].Digest)
	if len(got) != 2 || got[0].Ref != byDigest.String() || got[1].Ref != e.ref.String() || got[0].Root.Digest != got[1].Root.Digest {
		t.Errorf("by tag: got %+v", got)
	}
	got = OfDigest(e.images, byDigest, roots["old"].Digest)
	if len(got) != 1 || got[0].Ref != byDigest.String() {
		t.Errorf("by digest: got %+v", got)
	}
	wantEqual(t, "entries of an unknown digest", len(OfDigest(e.images, e.ref, "sha256:unknown")), 0)
}

// TestRetainedIsOnNode finds the retained content of a pin after its image was removed.
func TestRetainedIsOnNode(t *testing.T) {
	for name, test := range map[string]struct{ pinned, retain, held, want bool }{
		"no pin":              {held: true},
		"pin without content": {pinned: true, held: true},
		"nothing is held":     {pinned: true, retain: true},
		"retained":            {pinned: true, retain: true, held: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
			e.retained.roots[roots["old"].Digest] = test.held
			var pinned *pin.Pin
			if test.pinned {
				held := e.make(t, policy.NodeScope, "old", pin.ByUse, test.retain)
				pinned = &held
			}
			got, ok := e.onNode(Request{Ref: e.ref, Target: ownTarget}, pinned)
			wantEqual(t, "on the node", ok, test.want)
			if !ok {
				return
			}
			wantEqual(t, "reference", got.Ref, e.ref.String())
			wantEqual(t, "digest", version(got.Root.Digest), "old")
			wantEqual(t, "source", got.Source, imagepin.SourcePull)
			wantEqual(t, "time", got.ReadyAt, pinned.MadeAt)
		})
	}
}
