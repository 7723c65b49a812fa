package serve

import (
	"strings"
	"syscall"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// TestReload reloads the configuration while a pull runs. The pull continues, and an identical later pull joins it. New
// pulls use the new configuration. An invalid configuration is rejected and changes nothing.
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
	before := pins()
	if before == 0 {
		t.Error("got no pins after version_consistency was set")
	}
	for text, want := range map[string]string{
		"pull_behaviour = \"always\"\n":    `unknown key "pull_behaviour" (did you mean "pull_behavior"?)`,
		"manifest_pull_timeout = \"1s\"\n": "manifest_pull_timeout",
	} {
		r.wantRejected(func(o *node.Options) { o.Extra = ownSection + text }, want)
	}
	r.wantRejected(func(o *node.Options) { o.Extra, o.ServeExtra = "", "state = \"/elsewhere\"\n" }, "state: cannot change without a restart")
	r.wantRejected(func(o *node.Options) {
		o.ServeExtra = "[plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"native\"\n"
	}, `snapshotter: it is "native" here, but "overlayfs" in the running containerd`)
	r.pull(r.push("too:v1", "v3"), "")
	if got := pins(); got != before+1 {
		t.Errorf("got %d pins, want one more than %d: a rejected configuration changed something", got, before)
	}

	r.reload(func(o *node.Options) { o.Extra, o.ServeExtra = "", "" })
	r.pull(r.push("unpinned:v1", "v4"), "")
	if got := pins(); got != before+1 {
		t.Errorf("got %d pins, want %d", got, before+1)
	}
}

// wantRejected reloads an invalid configuration, and fails the test unless the log contains the error.
func (r *serveRig) wantRejected(change func(*node.Options), want string) {
	r.T.Helper()
	r.must(r.Prepare(change))
	since := r.LogOffset()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.awaitLog(since, "the configuration is not reloaded")
	if log := strings.ReplaceAll(r.LogsSince(since), `\"`, `"`); !strings.Contains(log, want) {
		r.T.Errorf("the log does not contain %s:\n%s", want, log)
	}
}
