package agree

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// overwritten is a Deployment with the pull policy IfNotPresent, whose tags are overwritten before each rollout: those of its init
// container, its container and its image volume.
type overwritten struct {
	*rig
	tags []string
	// latest are the digests of the tags, by tag.
	latest map[string]string
}

func newOverwritten(r *rig) *overwritten {
	o := &overwritten{rig: r, tags: []string{"team/init:v1", tag, "team/data:v1"}, latest: map[string]string{}}
	o.overwrite("1")
	d := r.deployment("web", 1)
	spec := &d.Spec.Template.Spec
	spec.InitContainers = []core.Container{{Name: "init", Image: r.reg.Ref(o.tags[0]), Args: []string{"exit", "0"}}}
	spec.Containers[0].ImagePullPolicy = core.PullIfNotPresent
	spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "data", MountPath: "/data"}}
	spec.Volumes = []core.Volume{{Name: "data", VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: r.reg.Ref(o.tags[2])}}}}
	r.do("POST", r.apps("deployments"), d, nil)
	r.running("web", 1, rollout, "1")
	r.scale(r.apps("deployments", "web"), 3)
	return o
}

// overwrite moves all tags.
func (o *overwritten) overwrite(version string) {
	o.t.Helper()
	for _, tag := range o.tags {
		o.latest[tag] = testkit.Push(o.t, o.reg, tag, o.app(tag+version)).String()
	}
	o.reg.Reset()
}

// roll rolls out a revision, whose pods start one after the other. It returns the pods.
func (o *overwritten) roll(revision string) []core.Pod {
	o.t.Helper()
	o.rig.roll(o.apps("deployments", "web"), rollout, revision)
	return o.running("web", 3, rollout, revision)
}

// wantBuild fails the test unless pods run, and their revision has ImagePins to, what the tags were when its first pod started. Only that
// pod has resolved them.
func (o *overwritten) wantBuild(what string, pods []core.Pod, latest map[string]string) {
	o.t.Helper()
	o.wantDigest(pods, latest[tag])
	for _, p := range pods {
		if _, got, _ := strings.Cut(p.Status.InitContainerStatuses[0].ImageID, "@"); got != latest[o.tags[0]] {
			o.t.Errorf("%s: the init container of %s ran %s, want %s", what, p.Name, got, latest[o.tags[0]])
		}
	}
	pins := map[string]string{}
	for _, p := range o.pins() {
		if p.Spec.Owner.UID == meta.GetControllerOf(&pods[0]).UID {
			pins[strings.TrimPrefix(p.Spec.Image, o.host+"/")] = p.Spec.Digest
		}
	}
	if fmt.Sprint(pins) != fmt.Sprint(latest) {
		o.t.Errorf("%s: the ImagePins are %v, want %v", what, pins, latest)
	}
	o.wantResolved(what, o.tags...)
}

// wantResolved fails the test unless tags were resolved, once each, since the last call.
func (o *overwritten) wantResolved(what string, tags ...string) {
	o.t.Helper()
	var got []string
	for _, q := range o.reg.Requests() {
		if q.Kind == registry.Manifest && !q.ByDigest() {
			got = append(got, q.Repository+":"+q.Reference)
		}
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(tags)); !slices.Equal(got, want) {
		o.t.Errorf("%s: got requests for the tags %v, want %v:\n%s", what, got, want, o.reg.Dump())
	}
	o.reg.Reset()
}

// resolvedBy returns the node that has resolved a tag for the revision of pods.
func (r *rig) resolvedBy(pods []core.Pod, tag string) string {
	r.t.Helper()
	for _, p := range r.pins() {
		if p.Spec.Owner.UID == meta.GetControllerOf(&pods[0]).UID && p.Spec.Image == r.host+"/"+tag {
			return p.Spec.By.Node
		}
	}
	r.t.Fatalf("no ImagePin of %s for the revision of %s", tag, pods[0].Name)
	return ""
}

// resolveAll is a rule with which new revisions resolve their tags.
const resolveAll = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**"]
new_revision = "resolve"
`

// TestNewRevisions rolls out a Deployment with IfNotPresent again and again on three nodes, and overwrites its tags before each rollout.
// Each revision runs the build that the tags had when its first pod started: without the registry, after restarts of all nodes, and
// whether kubelet verifies pull secrets itself or not. IMAGEPIN_ROLLOUTS is the number of rollouts.
func TestNewRevisions(t *testing.T) {
	t.Parallel()
	p := newPool(t, "newrevision", poolOptions{
		cluster: resolveAll,
		Options: pool.Options{
			Nodes: 3,
			Edit: func(i int, o *node.Options) {
				if o.Mode = node.Plugin; i == 1 {
					o.Mode = node.Serve
				}
			},
			Kubelet: func(i int, config map[string]any) {
				config["featureGates"] = map[string]any{"KubeletEnsureSecretPulledImages": i != 2}
			},
		},
	})
	r := newRig(t, p)
	o := newOverwritten(r)
	o.wantBuild("the first revision", r.running("web", 3, rollout, "1"), o.latest)
	n := rollouts(t)
	for i := 2; i <= n; i++ {
		revision := strconv.Itoa(i)
		o.overwrite(revision)
		o.wantBuild("revision "+revision, o.roll(revision), o.latest)
	}

	// The registry is away: the pods run the build of their nodes, which is that of no revision but the one before.
	before := o.latest[tag]
	o.overwrite("away")
	r.reg.SetFault(func(registry.Request) *registry.Fault { return &registry.Fault{Status: http.StatusServiceUnavailable} })
	pods := o.roll("away")
	r.wantDigest(pods, before)
	for _, pin := range r.pins() {
		if pin.Spec.Owner.UID == meta.GetControllerOf(&pods[0]).UID {
			t.Errorf("got an ImagePin of %s to %s without the registry", pin.Spec.Image, pin.Spec.Digest)
		}
	}
	r.reg.SetFault(nil)
	r.reg.Reset()
	for _, pod := range pods {
		pods = r.replace(pod, "web", 3)
	}
	o.wantBuild("the registry is back", pods, o.latest)

	// All nodes are restarted. A pod that starts afterwards runs the build of its revision, and the next revision that of the tags.
	now := fmt.Sprint(o.latest)
	latest := map[string]string{}
	for k, v := range o.latest {
		latest[k] = v
	}
	o.overwrite("restarted")
	for _, m := range p.Members {
		if err := m.RestartAll(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	pods = r.replace(r.running("web", 3, rollout, "away")[0], "web", 3)
	r.wantDigest(pods, latest[tag])
	o.wantResolved("a revision with ImagePins " + now)
	o.wantBuild("after the restart", o.roll("restarted"), o.latest)

	// One container with Never is enough: kubelet does not pull for it. The pod runs what the tag is on its node. On the node that has
	// resolved the tag for the last revision, that is the build of this revision. Pulls for pins of other nodes do not move a tag.
	before = o.latest[tag]
	by := r.resolvedBy(r.running("web", 3, rollout, "restarted"), tag)
	o.overwrite("never")
	d := r.deployment("never", 1)
	c := &d.Spec.Template.Spec.Containers[0]
	c.ImagePullPolicy = core.PullIfNotPresent
	never := *c
	never.Name, never.ImagePullPolicy = "never", core.PullNever
	d.Spec.Template.Spec.NodeSelector[core.LabelHostname] = by
	d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, never)
	r.do("POST", r.apps("deployments"), d, nil)
	pods = r.running("never", 1, rollout, "1")
	r.wantDigest(pods, before)
	r.agreed(pods, "")
	o.wantResolved("a pod with Never")
}
