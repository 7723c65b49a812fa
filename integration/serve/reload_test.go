package serve

import (
	"strings"
	"syscall"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// TestReload reads a configuration again while a pull runs: the pull goes on, and is joined by an equal one that came after; the new
// configuration holds from then on. One that is wrong is refused and changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	r := started(t, node.Options{NoPods: true})
	pins := func() int {
		t.Helper()
		resp, err := api.NewControlClient(r.Conn()).Pins(r.Ctx, &api.PinsRequest{})
		r.must(err)
		return len(resp.GetPins())
	}
	slow := r.push("slow:v1", "v1")
	begun, release := r.hang(registry.Is("GET", registry.Blob))
	pulled := make(chan error, 2)
	pull := func() {
		_, err := r.Pull(r.Ctx, slow, "")
		pulled <- err
	}
	go pull()
	begun()
	r.reload(func(o *node.Options) { o.Extra = ownSection + "version_consistency = \"node\"\n" })
	go pull()
	release()
	for range 2 {
		r.must(<-pulled)
	}
	seen := map[string]bool{}
	for _, q := range r.Reg.Requests() {
		if q.Kind == registry.Blob && seen[q.Path] {
			t.Errorf("%s was fetched twice", q.Path)
		}
		seen[q.Path] = true
	}

	r.pull(r.push("pinned:v1", "v2"), "")
	held := pins()
	if held == 0 {
		t.Error("after version_consistency was set, a pull pins nothing")
	}
	for text, says := range map[string]string{
		"pull_behaviour = \"always\"\n":    `unknown key "pull_behaviour" (did you mean "pull_behavior"?)`,
		"manifest_pull_timeout = \"1s\"\n": "manifest_pull_timeout",
	} {
		r.refuses(func(o *node.Options) { o.Extra = ownSection + text }, says)
	}
	r.refuses(func(o *node.Options) { o.Extra, o.ServeExtra = "", "state = \"/elsewhere\"\n" }, "state: cannot change without a restart")
	r.refuses(func(o *node.Options) {
		o.ServeExtra = "[plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"native\"\n"
	}, `snapshotter: it is "native" here, but "overlayfs" in the running containerd`)
	r.pull(r.push("too:v1", "v3"), "")
	if got := pins(); got != held+1 {
		t.Errorf("%d pins, not one more than %d: a configuration that was refused changed something", got, held)
	}

	r.reload(func(o *node.Options) { o.Extra, o.ServeExtra = "", "" })
	r.pull(r.push("unpinned:v1", "v4"), "")
	if got := pins(); got != held+1 {
		t.Errorf("%d pins, not %d", got, held+1)
	}
}

// refuses has a configuration read that is wrong.
func (r *serveRig) refuses(change func(*node.Options), says string) {
	r.T.Helper()
	r.must(r.Prepare(change))
	since := r.LogOffset()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.said(since, "the configuration is not reloaded")
	if log := strings.ReplaceAll(r.LogsSince(since), `\"`, `"`); !strings.Contains(log, says) {
		r.T.Errorf("the log does not say %s:\n%s", says, log)
	}
}
