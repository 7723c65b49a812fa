package serve

import (
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
)

// TestReloadLookups reloads lookup_interval: lookups in the background begin, and end, without a restart.
func TestReloadLookups(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	pins := func() *api.PinStatus {
		t.Helper()
		st, err := api.NewControlClient(r.Conn()).Status(r.Ctx, &api.StatusRequest{})
		r.must(err)
		return st.GetPins()
	}
	if p := pins(); p.GetLookupIntervalSeconds() != 0 || p.GetLookedUpAt() != nil {
		t.Errorf("got %v without lookup_interval", p)
	}
	r.reload(func(o *node.Options) { o.Extra = ownSection + "lookup_interval = \"1s\"\n" })
	r.Eventually("a round of lookups", func() bool { p := pins(); return p.GetLookupIntervalSeconds() == 1 && p.GetLookedUpAt() != nil })
	r.reload(func(o *node.Options) { o.Extra = "" })
	if p := pins(); p.GetLookupIntervalSeconds() != 0 {
		t.Errorf("got %v after lookup_interval was removed", p)
	}
	r.wantRejected(func(o *node.Options) { o.Extra = ownSection + "lookup_interval = \"1ms\"\n" }, "lookup_interval: 1ms is less than 1s")
}
