package kubectl

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/testkit"
)

// runs reports that the containers of a pod run a digest of their images' repository, as kubelet would.
func runs(t *testing.T, p *core.Pod, digest string) {
	t.Helper()
	bind(t, p, "n1")
	status := core.PodStatus{Phase: core.PodRunning}
	for _, c := range p.Spec.Containers {
		repository := c.Image[:strings.LastIndexByte(c.Image, ':')]
		status.ContainerStatuses = append(status.ContainerStatuses, core.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: repository + "@" + digest})
	}
	api.must(t, "PATCH", podPath(p.Namespace, p.Name)+"/status", map[string]any{"status": status}, p)
}

// protectReport is what protect -o json prints.
type protectReport struct {
	Cluster string
	Items   []struct {
		Repository, Digest, Tag, Status, Reason, OtherTag string
		UsedBy                                            []struct{ Kind, Namespace, Name string }
	}
}

// protect runs protect for the repositories below a name, and returns its report.
func protect(t *testing.T, code int, only string, args ...string) protectReport {
	t.Helper()
	r := kubectl.in(t, "default", append([]string{"protect", "-o", "json", "--only", only}, args...)...)
	var report protectReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
		t.Fatalf("exit code %d: %v", r.code, err)
	}
	if r.code != code {
		t.Errorf("got exit code %d, want %d", r.code, code)
	}
	return report
}

// statuses returns the status of each digest.
func (r protectReport) statuses() map[string]string {
	s := make(map[string]string)
	for _, i := range r.Items {
		s[i.Digest] = i.Status
	}
	return s
}

func (r protectReport) want(t *testing.T, want map[string]string) {
	t.Helper()
	got := r.statuses()
	for d, s := range want {
		if got[d] != s {
			t.Errorf("%s: got status %q, want %s", d, got[d], s)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// awaitReplicaSets waits until there are n ReplicaSets.
func awaitReplicaSets(t *testing.T, ns string, n int) {
	t.Helper()
	testkit.EventuallyIn(t, timeout, "there are ReplicaSets", func(ctx context.Context) (bool, error) {
		var list apps.ReplicaSetList
		err := api.Do(ctx, "GET", appsPath(ns, "replicasets", ""), nil, &list)
		return len(list.Items) == n, err
	})
}

// deleteApp deletes a Deployment and what belongs to it. There is no garbage collector.
func deleteApp(t *testing.T, ns, app string) {
	t.Helper()
	now := &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	api.must(t, "DELETE", appsPath(ns, "deployments", app), now, nil)
	var sets apps.ReplicaSetList
	api.must(t, "GET", appsPath(ns, "replicasets", "")+"?labelSelector=app="+app, nil, &sets)
	for _, rs := range sets.Items {
		api.must(t, "DELETE", appsPath(ns, "replicasets", rs.Name), now, nil)
		for _, pin := range api.pins(t, ns) {
			if pin.Spec.Owner.UID == rs.UID {
				api.must(t, "DELETE", pinPath(ns, pin.Name), now, nil)
			}
		}
	}
	api.must(t, "DELETE", podPath(ns, "")+"?labelSelector=app="+app, now, nil)
}

// A tag is overwritten, and the registry deletes what has no tag. What pods run, an ImagePin has, and the template of a kept
// revision names, is gone without protect, and can be pulled with it.
func TestProtect(t *testing.T) {
	t.Parallel()
	ns, reg := api.namespace(t), startDistribution(t)
	const shop, other = "shop/", "other/"
	digests := make(map[string]string)
	for _, in := range []string{shop, other} {
		for _, repository := range []string{"running", "pinned", "revision", "old"} {
			digests[in+repository] = reg.push(in + repository + ":v7")
		}
		image := func(repository string) string { return reg.host() + "/" + in + repository + ":v7" }
		prefix := strings.TrimSuffix(in, "/")
		one := int32(1)
		create := func(name, image string, replicas int32) {
			labels := map[string]string{"app": name}
			pods := core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template(image).Spec}
			api.must(t, "POST", appsPath(ns, "deployments", ""), &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: apps.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pods,
			}}, nil)
		}
		create(prefix+"-running", image("running"), one)
		create(prefix+"-pinned", image("pinned"), one)
		create(prefix+"-revision", strings.TrimSuffix(image("revision"), ":v7")+"@"+digests[in+"revision"], 0)
	}
	for _, p := range await(t, ns, 4) {
		in, name, _ := strings.Cut(p.Labels["app"], "-")
		if name == "running" {
			runs(t, p, digests[in+"/running"])
			continue
		}
		// No pod of the revision runs.
		api.claim(t, p, p.Spec.Containers[0].Image, digests[in+"/pinned"])
	}
	needed := []string{"running", "pinned", "revision"}
	want := func(in, status string) map[string]string {
		w := make(map[string]string)
		for _, repository := range needed {
			w[digests[in+repository]] = status
		}
		return w
	}
	awaitReplicaSets(t, ns, 6)
	protect(t, 0, reg.host()+"/shop", "--dry-run=client").want(t, want(shop, "Needed"))
	reg.want("")

	protected := protect(t, 0, reg.host()+"/shop")
	protected.want(t, want(shop, "Tagged"))
	reg.want("GET /v2/ 1, GET digest 3, HEAD tag 3, PUT tag 3")
	protect(t, 0, reg.host()+"/shop").want(t, want(shop, "Protected"))
	reg.want("GET /v2/ 1, HEAD tag 3")

	// The tags are overwritten.
	for _, in := range []string{shop, other} {
		for _, repository := range append(needed, "old") {
			reg.push(in + repository + ":v7")
		}
	}
	protect(t, 10, reg.host()+"/other", "--check").want(t, want(other, "Untagged"))
	// One HEAD request for the tag of protect and one for v7, of which the revision names none.
	reg.want("GET /v2/ 1, HEAD digest 3, HEAD tag 5")
	reg.collectGarbage()

	for _, repository := range needed {
		if err := reg.pull(shop+repository, digests[shop+repository]); err != nil {
			t.Errorf("%s with protect: %v", repository, err)
		}
		if err := reg.pull(other+repository, digests[other+repository]); err == nil {
			t.Errorf("%s without protect can still be pulled", repository)
		}
	}
	for _, in := range []string{shop, other} {
		if err := reg.pull(in+"old", digests[in+"old"]); err == nil {
			t.Error("a digest that nothing needs can still be pulled")
		}
	}
	protect(t, 10, reg.host()+"/other", "--check").want(t, want(other, "Gone"))
	protect(t, 0, reg.host()+"/shop", "--check").want(t, want(shop, "Protected"))
	protect(t, 10, reg.host()+"/other").want(t, want(other, "Gone"))

	// Nothing needs the digests any more.
	for _, app := range []string{"shop-running", "shop-pinned", "shop-revision"} {
		deleteApp(t, ns, app)
	}
	if got := protect(t, 0, reg.host()+"/shop"); len(got.Items) != 0 {
		t.Errorf("got %+v, want no item before the grace time", got.Items)
	}
	clear(reg.requests)
	protect(t, 0, reg.host()+"/shop", "--grace-time=0s").want(t, want(shop, "Removed"))
	reg.want("DELETE tag 5, GET /v2/ 1, HEAD digest 1, HEAD other 1, HEAD tag 5, PATCH other 1, POST other 1, PUT other 1, PUT tag 1")
	reg.collectGarbage()
	for _, repository := range needed {
		if got := strings.Join(reg.tags(shop+repository), " "); got != "v7" {
			t.Errorf("%s: got tags %s, want v7", repository, got)
		}
		if err := reg.pull(shop+repository, digests[shop+repository]); err == nil {
			t.Errorf("%s can still be pulled", repository)
		}
	}
}
