package fleet

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestOffline starts workloads on a node that has never reached a registry and has a bundle, all with the pull policy Always:
// a Deployment with an init container and an image volume, a DaemonSet on another snapshotter, a Deployment with another
// platform and a pull secret, and a Job. They also start after containerd and kubelet have restarted. The pod whose rule has
// pull_behavior = "always" does not start, although the lock names its image.
func TestOffline(t *testing.T) {
	t.Parallel()
	for _, mode := range []node.Mode{node.Plugin, node.Serve} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "offline-"+string(mode), node.Options{
				Mode: mode, Handlers: handlers, Extra: testkit.BehaviorRules, DiscardUnpackedLayers: mode == node.Serve,
			})
			o := &offline{rig: r, web: r.push("shop/web:v1", "web"), agent: r.push("prefer-cached/agent:v1", "agent"), report: r.push("prefer-cached/report:v1", "report")}
			r.push("prefer-cached/init:v1", "init")
			r.push("always/app:v1", "always")
			r.pushIndex("shop/data:v1", testkit.AppIndex(t, images.Options{Version: "data", SingleLayer: true}, images.HostPlatform()))
			manifest := r.manifest("offline.yaml")
			bundle := r.bundle("bundle.tar.zst", r.lock("lock.yaml", manifest))
			r.Reg.Down()
			r.startNode()
			r.imagepin(0, []string{"apply", bundle}, "Applied lock")
			r.startKubelet(nil)
			r.kubectl("apply", "-f", manifest)
			o.start("one")
			r.pods("always", 1, "wait with RegistryUnavailable", func(p core.Pod) bool {
				return strings.Contains(waiting(p), "RegistryUnavailable") && strings.Contains(waiting(p), r.Reg.Ref("always/app:v1"))
			})

			r.stopKubelet()
			r.KillAndRestart(nil)
			r.startKubelet(nil)
			r.kubectl("rollout", "restart", "deployment/web", "deployment/foreign", "daemonset/agent")
			r.kubectl("delete", "job", "one")
			o.restarted = true
			o.start("two")
			r.imagepin(0, []string{"lock", "status"}, "0 missing", "0 run another digest")
			r.imagepin(0, []string{"check", "--deep"})
			r.wantFallback("shop/web:v1", true)
			r.wantFallback("prefer-cached/agent:v1", false)
		})
	}
}

// offline is the rig of TestOffline with the digests of its images.
type offline struct {
	*rig
	web, agent, report string
	restarted          bool // by kubectl rollout restart
}

// start starts a Job, and waits until the pods of all workloads run or have run the images of the lock.
func (o *offline) start(job string) {
	o.T.Helper()
	o.kubectl("create", "job", job, "--from=cronjob/report")
	for _, p := range o.new("web", 2, o.web) {
		o.wantLine(p, "c", images.Options{Version: "web"}.Line(0))
		o.wantLine(p, "init", images.HostPlatform()+",data")
	}
	o.wantLine(o.new("agent", 1, o.agent)[0], "c", images.Options{Version: "agent"}.Line(0))
	o.wantLine(o.new("foreign", 1, o.web)[0], "c", images.Options{Version: "web", Platform: foreignPlatform}.Line(0))
	o.pods("report", 1, "run "+o.report, func(p core.Pod) bool { return p.Status.Phase == core.PodSucceeded && runs(p, o.report) })
}

// new is running for the pods since the last kubectl rollout restart.
func (o *offline) new(app string, n int, digest string) []core.Pod {
	o.T.Helper()
	return o.pods(app, n, "run "+digest, func(p core.Pod) bool {
		_, restarted := p.Annotations["kubectl.kubernetes.io/restartedAt"]
		return restarted == o.restarted && isRunning(p) && runs(p, digest)
	})
}

// wantFallback fails the test unless imagepin has queried the registry for a reference and then used the image on the node, or
// has never done so.
func (r *rig) wantFallback(ref string, want bool) {
	r.T.Helper()
	fallback := false
	for line := range strings.Lines(r.Logs()) {
		fallback = fallback || strings.Contains(line, "the registry is unavailable, using the image on the node") && strings.Contains(line, r.Reg.Ref(ref))
	}
	if fallback != want {
		r.T.Errorf("%s: the registry was queried and the image on the node used: %v, want %v", ref, fallback, want)
	}
}
