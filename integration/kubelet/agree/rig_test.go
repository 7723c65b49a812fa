package agree

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// tag is the tag that tests move.
const tag = "team/app:v1"

// rig is a namespace and a registry for one test, and the nodes of its pods.
type rig struct {
	t    *testing.T
	ctx  context.Context
	ns   string
	reg  *registry.Registry
	host string // of image references, by default that of reg
	pool *pool.Pool
	// pushed is the number of images that moving has pushed.
	pushed int
}

// namespaces is the number of namespaces that tests have created.
var namespaces atomic.Int32

func newRig(t *testing.T, p *pool.Pool) *rig {
	t.Helper()
	r := &rig{t: t, ctx: testkit.Context(t), ns: fmt.Sprintf("test-%d", namespaces.Add(1)), reg: testkit.Registry(t), pool: p}
	r.host = r.reg.Host()
	r.do("POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: r.ns}}, nil)
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range p.Members {
				t.Logf("the end of %s's kubelet log:\n%s", m.Name, m.Kubelet.LogTail(15))
				t.Logf("the end of what %s's containerd logged of the test:\n%s", m.Name, r.logOf(m))
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := kube.Do(ctx, "DELETE", "/api/v1/namespaces/"+r.ns, nil, nil); err != nil {
			t.Error(err)
		}
	})
	return r
}

// logOf returns the last lines of containerd's log that name the test's namespace or registry.
func (r *rig) logOf(m *pool.Member) string {
	var lines []string
	for line := range strings.Lines(m.Logs()) {
		if strings.Contains(line, r.ns) || strings.Contains(line, r.host) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-30):], "")
}

// do sends a request with all permissions.
func (r *rig) do(method, path string, in, out any) {
	r.t.Helper()
	if err := kube.Do(r.ctx, method, path, in, out); err != nil {
		r.t.Fatal(err)
	}
}

// push moves the tag to the image of a version. It returns the digest.
func (r *rig) push(version string) string {
	r.t.Helper()
	return testkit.Push(r.t, r.reg, tag, r.app(version)).String()
}

// image returns the reference in the pods.
func (r *rig) image() string { return r.host + "/" + tag }

// core, apps and batch return the paths of resources in the test's namespace.
func (r *rig) core(resource string, name ...string) string { return r.path("/api/v1", resource, name) }

func (r *rig) apps(resource string, name ...string) string {
	return r.path("/apis/apps/v1", resource, name)
}

func (r *rig) batch(resource string, name ...string) string {
	return r.path("/apis/batch/v1", resource, name)
}

func (r *rig) path(version, resource string, name []string) string {
	return strings.Join(append([]string{version, "namespaces", r.ns, resource}, name...), "/")
}

// rollout is the annotation of a pod template that tests change to roll out a new revision.
const rollout = "rollout"

// appLabel is the label of the pods of a workload with its name.
const appLabel = "app"

func selector(app string) *meta.LabelSelector {
	return &meta.LabelSelector{MatchLabels: map[string]string{appLabel: app}}
}

// template returns the template of pods that run on the nodes of the pool, spread evenly for each revision.
func (r *rig) template(app string) core.PodTemplateSpec {
	return core.PodTemplateSpec{
		ObjectMeta: meta.ObjectMeta{Labels: selector(app).MatchLabels, Annotations: map[string]string{rollout: "1"}},
		Spec: core.PodSpec{
			HostNetwork: true, AutomountServiceAccountToken: new(bool), TerminationGracePeriodSeconds: new(int64(1)),
			NodeSelector: map[string]string{pool.Label: r.pool.Name},
			Containers:   []core.Container{{Name: "c", Image: r.image(), ImagePullPolicy: core.PullAlways}},
			TopologySpreadConstraints: []core.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: core.LabelHostname, WhenUnsatisfiable: core.DoNotSchedule, LabelSelector: selector(app),
				MatchLabelKeys: []string{"pod-template-hash"},
			}},
		},
	}
}

// roll changes an annotation of the pod template of a workload, so that its controller rolls out another revision.
func (r *rig) roll(path, annotation, value string) {
	r.t.Helper()
	r.patch(path, map[string]any{"spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{annotation: value}},
	}}})
}

func (r *rig) scale(path string, replicas int) {
	r.t.Helper()
	r.patch(path, map[string]any{"spec": map[string]any{"replicas": replicas}})
}

func (r *rig) patch(path string, change any) {
	r.t.Helper()
	r.do("PATCH", path, change, nil)
}

// running waits until a workload has exactly n pods, which all run and have the annotation with the value.
func (r *rig) running(app string, n int, annotation, value string) []core.Pod {
	r.t.Helper()
	what := fmt.Sprintf("%d pods of %s with %s=%s run", n, app, annotation, value)
	return await[core.Pod](r.t, r.core("pods"), appLabel+"="+app, what, func(pods []core.Pod) bool {
		for _, p := range pods {
			if p.DeletionTimestamp != nil || p.Annotations[annotation] != value || digestOf(p) == "" {
				return false
			}
		}
		return len(pods) == n
	})
}

// digestOf returns the digest of the image that the first container of a pod runs. It is "" until all containers run.
func digestOf(p core.Pod) string {
	digest := ""
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil && c.State.Terminated == nil {
			return ""
		}
		if c.Name == p.Spec.Containers[0].Name {
			_, digest, _ = strings.Cut(c.ImageID, "@")
		}
	}
	return digest
}

// wantDigest fails the test unless all pods run a digest.
func (r *rig) wantDigest(pods []core.Pod, digest string) {
	r.t.Helper()
	for _, p := range pods {
		if got := digestOf(p); got != digest {
			r.t.Errorf("pod %s on %s runs %s, want %s", p.Name, p.Spec.NodeName, got, digest)
		}
	}
}

// pins returns the ImagePins of the namespace.
func (r *rig) pins() []v1alpha1.ImagePin {
	r.t.Helper()
	var list v1alpha1.ImagePinList
	r.do("GET", pinsPath(r.ns), nil, &list)
	return list.Items
}

// pinOf returns the only ImagePin of a revision of an owner.
func (r *rig) pinOf(owner types.UID, revision string) v1alpha1.ImagePin {
	r.t.Helper()
	var found []v1alpha1.ImagePin
	for _, p := range r.pins() {
		if p.Spec.Owner.UID == owner && p.Spec.Owner.Revision == revision {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("owner %s, revision %q: got ImagePins %v, want one", owner, revision, found)
	}
	return found[0]
}

// agreed fails the test unless all pods are of one revision, have one ImagePin that one of them has created, and run its
// digest. It returns the ImagePin.
func (r *rig) agreed(pods []core.Pod, revision string) v1alpha1.ImagePin {
	r.t.Helper()
	p := r.pinOf(meta.GetControllerOf(&pods[0]).UID, revision)
	r.wantDigest(pods, p.Spec.Digest)
	if p.Spec.Image != r.image() {
		r.t.Errorf("ImagePin %s is for %s, want %s", p.Name, p.Spec.Image, r.image())
	}
	if p.Spec.By == nil {
		r.t.Fatalf("ImagePin %s: no node", p.Name)
	}
	for _, pod := range pods {
		if pod.UID == p.Spec.By.PodUID && pod.Name == p.Spec.By.Pod && pod.Spec.NodeName == p.Spec.By.Node {
			return p
		}
	}
	r.t.Errorf("ImagePin %s is by %+v, which is none of the pods", p.Name, *p.Spec.By)
	return p
}

// race is requests for the tag that wait for each other.
type race struct {
	r    *rig
	want int
	came atomic.Int32
	last chan struct{} // closed when n requests have come
	all  chan struct{} // closed when the requests continue
	once sync.Once
}

// moving makes the registry answer each of the next n requests for the tag with another digest, as if the tag moved after
// each. The first requests wait until there are as many as together. It returns the digests in the order of the answers.
func (r *rig) moving(n, together int) (*race, []string) {
	r.t.Helper()
	var (
		heads   []registry.Fault
		digests []string
	)
	for range n {
		r.pushed++
		idx := r.app(fmt.Sprintf("%s-moving-%d", r.ns, r.pushed))
		digest := testkit.Push(r.t, r.reg, tag, idx).String()
		body, err := idx.RawManifest()
		if err != nil {
			r.t.Fatal(err)
		}
		mediaType, err := idx.MediaType()
		if err != nil {
			r.t.Fatal(err)
		}
		heads = append(heads, registry.Fault{Status: http.StatusOK, Header: http.Header{
			"Content-Type": {string(mediaType)}, "Content-Length": {strconv.Itoa(len(body))}, "Docker-Content-Digest": {digest},
		}})
		digests = append(digests, digest)
	}
	c := &race{r: r, want: together, last: make(chan struct{}), all: make(chan struct{})}
	r.reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Kind != registry.Manifest || q.ByDigest() || q.Repository != repository {
			return nil
		}
		i := int(c.came.Add(1))
		if i >= together {
			c.release()
		}
		if i == n {
			close(c.last)
		}
		if i > n {
			return nil // the digest that was pushed last
		}
		f := heads[i-1]
		f.Hang = c.all
		return &f
	})
	return c, digests
}

// release lets the requests continue.
func (c *race) release() { c.once.Do(func() { close(c.all) }) }

// finish fails the test unless all requests that wait for each other have come.
func (c *race) finish() {
	c.r.t.Helper()
	if got := int(c.came.Load()); got < c.want {
		c.r.t.Errorf("got %d requests for the tag, want at least %d", got, c.want)
	}
	c.r.reg.SetFault(nil)
}

// repository is that of the tag.
const repository = "team/app"

func (r *rig) app(version string) v1.ImageIndex {
	r.t.Helper()
	return testkit.AppIndex(r.t, images.Options{Version: version}, images.HostPlatform())
}

// nodesOf returns the nodes of pods.
func nodesOf(pods []core.Pod) map[string]bool {
	nodes := map[string]bool{}
	for _, p := range pods {
		nodes[p.Spec.NodeName] = true
	}
	return nodes
}

// replace deletes a pod and waits until another one of its workload, which has n pods, runs. It returns all pods.
func (r *rig) replace(p core.Pod, app string, n int) []core.Pod {
	r.t.Helper()
	r.do("DELETE", r.core("pods", p.Name), nil, nil)
	return r.running(app, n, rollout, p.Annotations[rollout])
}

// on returns the pod on a node.
func on(t *testing.T, pods []core.Pod, m *pool.Member) core.Pod {
	t.Helper()
	for _, p := range pods {
		if p.Spec.NodeName == m.Name {
			return p
		}
	}
	t.Fatalf("no pod on %s", m.Name)
	return core.Pod{}
}

// awaitEvent waits until there is an Event of an owner with a reason.
func (r *rig) awaitEvent(owner *meta.OwnerReference, reason string) {
	r.t.Helper()
	what := fmt.Sprintf("%s %s has the event %s", owner.Kind, owner.Name, reason)
	await[events.Event](r.t, r.path("/apis/events.k8s.io/v1", "events", nil), "", what, func(all []events.Event) bool {
		return slices.ContainsFunc(all, func(e events.Event) bool { return e.Regarding.UID == owner.UID && e.Reason == reason })
	})
}
