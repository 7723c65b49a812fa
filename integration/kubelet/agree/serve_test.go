package agree

import (
	"context"
	"strings"
	"syscall"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestServe runs imagepin in one node's containerd, and in front of the other node's containerd. They agree, whoever creates
// the ImagePin. Reloads of imagepin serve add the section cluster, change another setting, which keeps the connection to the
// API server, and change the section.
func TestServe(t *testing.T) {
	t.Parallel()
	const timeout = "30s"
	claims := pool.Claims(timeout, "")
	p := newPool(t, "serve", poolOptions{Options: pool.Options{Nodes: 2, Edit: func(i int, o *node.Options) {
		o.Mode = node.Plugin
		if i == 1 {
			o.Mode = node.Serve
			o.Extra, _, _ = strings.Cut(claims, clusterSection)
		}
	}}})
	r := newRig(t, p)
	plugin, serve := p.Members[0], p.Members[1]
	path := r.apps("deployments", "web")
	cordon(t, plugin, true)
	first := r.push("1")
	r.do("POST", r.apps("deployments"), r.deployment("web", 1), nil)
	r.wantDigest(r.running("web", 1, rollout, "1"), first)
	if pins := r.pins(); len(pins) > 0 || serve.Link.Accepted() > 0 {
		t.Errorf("without the section cluster: got ImagePins %v and %d connections to the API server", pins, serve.Link.Accepted())
	}

	reload(t, serve, claims)
	second := r.push("2")
	r.roll(path, rollout, "2")
	r.wantDigest(r.running("web", 1, rollout, "2"), second)
	cordon(t, plugin, false)
	r.push("3")
	r.scale(path, 2)
	pods := r.running("web", 2, rollout, "2")
	r.wantDigest(pods, second)
	if pin := r.agreed(pods, ""); pin.Spec.By.Node != serve.Name {
		t.Errorf("the ImagePin is by %s, want %s, which runs imagepin serve", pin.Spec.By.Node, serve.Name)
	}

	connections := serve.Link.Accepted()
	reload(t, serve, strings.Replace(claims, clusterSection, `pin_ttl = "48h"`+"\n"+clusterSection, 1))
	r.moving(2, 1)
	r.roll(path, rollout, "3")
	r.agreed(r.running("web", 2, rollout, "3"), "")
	if n := serve.Link.Accepted(); n != connections || n == 0 {
		t.Errorf("a reload without a change of the section cluster: got %d connections to the API server, want the %d of before", n, connections)
	}

	reload(t, serve, pool.Claims(timeout, `unavailable = "fail"`))
	serve.Link.Cut()
	cordon(t, plugin, true)
	earlier := len(serve.Kubelet.Proxy.Calls("PullImage"))
	r.do("POST", r.apps("deployments"), r.deployment("strict", 1), nil)
	awaitRefusal(t, serve, earlier, "ClusterUnavailable")
	if err := serve.Link.Restore(); err != nil {
		t.Fatal(err)
	}
	r.restartPull("strict", serve)
	pods = r.running("strict", 1, rollout, "1")
	pin := r.agreed(pods, "")
	awaitPin(t, serve, r.image(), meta.GetControllerOf(&pods[0]).UID, "is that of the cluster", settled(pin.Spec.Digest))
}

// clusterSection is the header of imagepin's section cluster.
const clusterSection = `[plugins."io.containerd.imagepin.v1.images".cluster]`

// reload changes the configuration of a node with imagepin serve, and reloads it.
func reload(t *testing.T, m *pool.Member, config string) {
	t.Helper()
	if err := m.Prepare(func(o *node.Options) { o.Extra = config }); err != nil {
		t.Fatal(err)
	}
	since := m.LogOffset()
	if err := m.SignalServe(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyIn(t, patience, m.Name+" has reloaded its configuration", func(context.Context) (bool, error) {
		return strings.Contains(m.LogsSince(since), "the configuration is reloaded"), nil
	})
}
