package kubectl

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

// lockFile writes a lock, see lockOf.
func lockFile(t *testing.T, pairs ...string) string {
	t.Helper()
	return file(t, "images.lock", lockOf(pairs...))
}

// lockOf returns a lock with the digests of tags, each a pair of a reference as in a manifest and a digest.
func lockOf(pairs ...string) string {
	text := "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n"
	for i := 0; i < len(pairs); i += 2 {
		repository := pairs[i]
		if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
			repository = repository[:colon]
		}
		text += fmt.Sprintf("- image: %s@%s\n  annotations: {kbld.carvel.dev/id: %q}\n", repository, pairs[i+1], pairs[i])
	}
	return text
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// replicaSet waits until a Deployment has its only ReplicaSet.
func replicaSet(t *testing.T, ns string) *apps.ReplicaSet {
	t.Helper()
	rs := &apps.ReplicaSet{}
	testkit.EventuallyIn(t, timeout, "the Deployment has a ReplicaSet", func(ctx context.Context) (bool, error) {
		var list apps.ReplicaSetList
		err := api.Do(ctx, "GET", appsPath(ns, "replicasets", ""), nil, &list)
		if len(list.Items) == 1 {
			*rs = list.Items[0]
		}
		return len(list.Items) == 1, err
	})
	return rs
}

func ownerOfSet(rs *apps.ReplicaSet) v1alpha1.Owner {
	return v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID}
}

// seedReport is what seed prints with -o json.
type seedReport struct {
	APIVersion, Kind, DryRun string
	Items                    []struct {
		Namespace string
		Owner     v1alpha1.Owner
		Image     string
		Digest    string
		ImagePin  string
		Status    string
		Other     string `json:"otherDigest"`
		By        *v1alpha1.Claimer
	}
}

// TestSeed seeds workloads of all kinds that have no pods, and those that have no revision. The images of the pods are then
// decided: nodes that claim get the ImagePins of the lock.
func TestSeed(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	d := &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{
		Replicas: new(int32), Selector: selector, Template: template(image),
	}}
	d.Spec.Template.Spec.InitContainers = []core.Container{
		{Name: "init", Image: "busybox:1"}, {Name: "same", Image: "docker.io/library/busybox:1"},
	}
	d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, core.Container{Name: "fixed", Image: "shop/fixed:v1@" + digestB})
	api.must(t, "POST", appsPath(ns, "deployments", ""), d, nil)
	rs := replicaSet(t, ns)
	statefulSet(t, ns, "db", "postgres:18", 0)
	daemonSet(t, ns, "agent", "agent")
	suspended := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: "migrate"}, Spec: batch.JobSpec{Suspend: new(true), Template: template(image)}}
	suspended.Spec.Template.Spec.RestartPolicy = core.RestartPolicyNever
	api.must(t, "POST", "/apis/batch/v1/namespaces/"+ns+"/jobs", suspended, suspended)
	cron := &batch.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "report"}, Spec: batch.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: batch.JobTemplateSpec{Spec: suspended.Spec}}}
	cron.Spec.JobTemplate.Spec.Selector, cron.Spec.JobTemplate.Spec.Template.Labels = nil, nil
	api.must(t, "POST", "/apis/batch/v1/namespaces/"+ns+"/cronjobs", cron, nil)
	pod := await(t, ns, 2)[0] // of the DaemonSet

	file := lockFile(t, image, digestA, "postgres:18", digestB, "agent", digestA)
	rows := func(status string) string {
		return `
			OWNER IMAGE DIGEST STATUS
			CronJob/report ` + image + ` aaaaaaaaaaaa no revision
			DaemonSet/agent docker.io/library/agent:latest aaaaaaaaaaaa ` + status + `
			Job/migrate ` + image + ` aaaaaaaaaaaa ` + status + `
			ReplicaSet/` + rs.Name + ` docker.io/library/busybox:1 <none> not in lock
			ReplicaSet/` + rs.Name + ` ` + image + ` aaaaaaaaaaaa ` + status + `
			StatefulSet/db docker.io/library/postgres:18 bbbbbbbbbbbb ` + status
	}
	want := func(r result, code int, status string) {
		t.Helper()
		if r.code != code {
			t.Errorf("got exit code %d, want %d", r.code, code)
		}
		wantTable(t, r.out, rows(status))
		const warnings = "Warning: 1 image not in the lock: the first node that starts a pod decides the digest\n" +
			"Warning: 1 image of workloads without revisions: nodes decide the digests\n"
		if r.err != warnings {
			t.Errorf("got %q", r.err)
		}
	}
	want(kubectl.in(t, ns, "seed", file, "--all", "--dry-run=client"), 10, "created (dry run)")
	want(kubectl.in(t, ns, "seed", file, "--all", "--dry-run=server"), 10, "created (server dry run)")
	if pins := api.pins(t, ns); len(pins) != 0 {
		t.Fatalf("a dry run has created %v", pins)
	}
	want(kubectl.in(t, ns, "seed", file, "--all"), 10, "created")
	want(kubectl.in(t, ns, "seed", file, "--all", "--allow-missing"), 0, "unchanged")

	pins := api.pins(t, ns)
	if len(pins) != 4 {
		t.Fatalf("got %d ImagePins, want 4", len(pins))
	}
	web := pins[v1alpha1.Name(ownerOfSet(rs), image)]
	if want := (v1alpha1.ImagePinSpec{Image: image, Digest: digestA, Owner: ownerOfSet(rs)}); web.Spec != want {
		t.Errorf("got %+v, want %+v", web.Spec, want)
	}
	wantReference(t, web, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID})
	if agent := pins[pinNameOf(pod, "docker.io/library/agent:latest")]; agent.Spec.Digest != digestA || agent.OwnerReferences[0].Kind != "ControllerRevision" {
		t.Errorf("got %+v with owner %+v, want an ImagePin of %+v that is deleted with its ControllerRevision", agent.Spec, agent.OwnerReferences, ownerOf(pod))
	}
	// The pod of a node that resolves the tag to another digest has the name of the ImagePin that is there.
	late := web.DeepCopy()
	late.ResourceVersion, late.UID, late.Spec.Digest = "", "", digestB
	late.APIVersion, late.Kind = v1alpha1.GroupVersion.String(), "ImagePin"
	if err := api.Do(testkit.Context(t), "POST", pinPath(ns, ""), late, nil); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a node that claims later: got %v, want that the ImagePin exists", err)
	}

	var report seedReport
	if err := json.Unmarshal([]byte(kubectl.must(t, ns, "seed", file, "deployment/web", "statefulset/db", "--allow-missing", "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.APIVersion != "output.imagepin.io/v1alpha1" || report.Kind != "SeedReport" || len(report.Items) != 3 {
		t.Fatalf("got %+v", report)
	}
	if i := report.Items[1]; i.Status != "Unchanged" || i.Owner != ownerOfSet(rs) || i.Digest != digestA || i.ImagePin != web.Name || i.Namespace != ns {
		t.Errorf("got %+v", i)
	}
	if out := kubectl.must(t, ns, "seed", file, "statefulset/db", "-o", "jsonpath={.items[*].status}"); out != "Unchanged" {
		t.Errorf("got %q", out)
	}
	if out := kubectl.must(t, ns, "seed", file, "job/migrate", "-o", "name"); out != "imagepin.imagepin.io/"+v1alpha1.Name(v1alpha1.Owner{
		APIVersion: "batch/v1", Kind: "Job", Name: "migrate", UID: suspended.UID}, image)+"\n" {
		t.Errorf("got %q", out)
	}
	wantTable(t, kubectl.must(t, ns, "seed", file, "pod/"+pod.Name, "-o", "wide", "--no-headers"),
		"DaemonSet/agent docker.io/library/agent:latest "+digestA+" unchanged "+pinNameOf(pod, "docker.io/library/agent:latest")+" "+ownerOf(pod).Revision)
}

// TestSeedConflict seeds a revision whose ImagePin a node was first to create.
func TestSeedConflict(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	pod := run(t, ns, 1, digestB)[0]
	pin := api.claim(t, pod, image, digestB)
	file := lockFile(t, image, digestA)
	row := func(status string) string {
		return "ReplicaSet/" + ownerOf(pod).Name + " " + image + " aaaaaaaaaaaa " + status
	}
	unchanged := func() {
		t.Helper()
		if now := api.pins(t, ns)[pin.Name]; now.ResourceVersion != pin.ResourceVersion {
			t.Errorf("the ImagePin has changed: %+v", now.Spec)
		}
	}

	r := kubectl.in(t, ns, "seed", file, "deployment/web", "--no-headers", "--allow-missing")
	wantTable(t, r.out, row("conflict: has bbbbbbbbbbbb, created by node "+pin.Spec.By.Node))
	if r.code != 10 || r.err != "Warning: 1 ImagePin with another digest: to move to that of the lock, use --force\n" {
		t.Errorf("exit code %d, %q", r.code, r.err)
	}
	unchanged()
	r = kubectl.in(t, ns, "seed", file, "deployment/web", "-o", "json")
	var report seedReport
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
		t.Fatal(err)
	}
	if i := report.Items[0]; r.code != 10 || i.Status != "Conflict" || i.Digest != digestA || i.Other != digestB || i.By == nil || *i.By != *pin.Spec.By {
		t.Errorf("exit code %d, %+v", r.code, i)
	}
	for strategy, suffix := range map[string]string{"client": " (dry run)", "server": " (server dry run)"} {
		wantTable(t, kubectl.must(t, ns, "seed", file, "deployment/web", "--force", "--no-headers", "--dry-run="+strategy), row("moved from bbbbbbbbbbbb"+suffix))
	}
	unchanged()
	wantTable(t, kubectl.must(t, ns, "seed", file, "deployment/web", "--force", "--no-headers"), row("moved from bbbbbbbbbbbb"))
	if now := api.pins(t, ns)[pin.Name]; now.Spec.Digest != digestA || now.UID != pin.UID || *now.Spec.By != *pin.Spec.By {
		t.Errorf("got %+v, want the ImagePin of the node, moved", now.Spec)
	}
	wantTable(t, kubectl.must(t, ns, "seed", file, "deployment/web", "--force", "--no-headers"), row("unchanged"))
}

// TestSeedAtOneTime seeds one set twice at one time, while a node claims half of the images with another digest. Each ImagePin
// is created once, and both seeds report those of the node as conflicts.
func TestSeedAtOneTime(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	const n = 8
	var pairs []string
	spec := template(image)
	for i := range n {
		spec.Spec.InitContainers = append(spec.Spec.InitContainers, core.Container{Name: fmt.Sprint("c", i), Image: fmt.Sprintf("shop/c%d:v1", i)})
		pairs = append(pairs, fmt.Sprintf("shop/c%d:v1", i), digestA)
	}
	spec.Spec.Containers[0].Image = "shop/c0:v1"
	api.must(t, "POST", appsPath(ns, "deployments", ""), &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{
		Replicas: new(int32(1)), Selector: selector, Template: spec,
	}}, nil)
	pod := await(t, ns, 1)[0]
	file := lockFile(t, pairs...)
	var (
		wg      sync.WaitGroup
		reports [2]seedReport
		codes   [2]int
		byNode  sync.Map
	)
	for i := range reports {
		wg.Go(func() {
			r, err := kubectl.run(testkit.Context(t), "seed", file, "--all", "-o", "json", "--namespace="+ns)
			if err != nil {
				t.Error(err)
				return
			}
			codes[i] = r.code
			if err := json.Unmarshal([]byte(r.out), &reports[i]); err != nil {
				t.Errorf("%v: %s%s", err, r.out, r.err)
			}
		})
	}
	wg.Go(func() {
		for i := range n / 2 {
			image := fmt.Sprintf("docker.io/shop/c%d:v1", i)
			err := api.Do(testkit.Context(t), "POST", pinPath(ns, ""), nodePin(pod, image, digestB), nil)
			if err != nil && !apierrors.IsAlreadyExists(err) {
				t.Error(err)
			}
			byNode.Store(image, err == nil)
		}
	})
	wg.Wait()
	pins := api.pins(t, ns)
	if len(pins) != n {
		t.Errorf("got %d ImagePins, want %d", len(pins), n)
	}
	if len(reports[0].Items) != n || len(reports[1].Items) != n {
		t.Fatalf("got %d and %d items, want %d", len(reports[0].Items), len(reports[1].Items), n)
	}
	conflicts := 0
	for i := range reports[0].Items {
		a, b := reports[0].Items[i], reports[1].Items[i]
		first, _ := byNode.Load(a.Image)
		digest, want := digestA, []string{"Created Unchanged", "Unchanged Created"}
		if first == true {
			digest, want = digestB, []string{"Conflict Conflict"}
			conflicts++
		}
		if got := a.Status + " " + b.Status; pins[a.ImagePin].Spec.Digest != digest || !strings.Contains(strings.Join(want, ","), got) {
			t.Errorf("%s: the node was first: %v; the seeds report %q, and the ImagePin has %s", a.Image, first, got, pins[a.ImagePin].Spec.Digest)
		}
	}
	want := 0
	if conflicts > 0 {
		want = 10
	}
	if codes != [2]int{want, want} {
		t.Errorf("got exit codes %v, want %d for %d conflicts", codes, want, conflicts)
	}
}

// TestSeedTwoClusters seeds two clusters from one lock. They have the same digests, for owners of their own.
func TestSeedTwoClusters(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	c, err := cluster.Start(ctx, cluster.Options{Authorize: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	second := &server{c}
	if err := second.install(ctx); err != nil {
		t.Fatal(err)
	}
	if err := second.StartControllers("deployment-controller", "replicaset-controller", "statefulset-controller"); err != nil {
		t.Fatal(err)
	}
	ns := api.namespace(t)
	second.must(t, "POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, nil)
	manifest := file(t, "web.yaml", manifest(ns))
	file := lockFile(t, image, digestA, "postgres:18", digestB)

	var names []string
	for _, s := range []*server{api, second} {
		kubeconfig := "--kubeconfig=" + s.Kubeconfig()
		s.apply(t, ns)
		kubectl.must(t, ns, "seed", file, "-f", manifest, "--wait", kubeconfig)
		digests := map[string]string{}
		for name, pin := range s.pins(t, ns) {
			digests[pin.Spec.Image] = pin.Spec.Digest
			names = append(names, name)
		}
		if len(digests) != 2 || digests[image] != digestA || digests["docker.io/library/postgres:18"] != digestB {
			t.Errorf("got %v, want the digests of the lock", digests)
		}
	}
	if len(names) == 4 && (names[0] == names[2] || names[0] == names[3]) {
		t.Errorf("got %v, want other ImagePins in each cluster", names)
	}
}

// late is a proxy of an API server that shows a StatefulSet as it is before its controller has observed it, in the first
// responses.
type late struct {
	path   string
	hidden int // the number of responses

	mu   sync.Mutex
	seen int
}

func (l *late) start(t *testing.T) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: api.Server()})
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true}
	proxy.ModifyResponse = l.hide
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Accept-Encoding")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// responses returns how many responses had the StatefulSet.
func (l *late) responses() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

func (l *late) hide(r *http.Response) error {
	if r.Request.URL.Path != l.path || r.StatusCode != http.StatusOK {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen++; l.seen > l.hidden {
		return nil
	}
	var s apps.StatefulSet
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		return err
	}
	s.Status = apps.StatefulSetStatus{}
	if err := r.Body.Close(); err != nil {
		return err
	}
	text, err := json.Marshal(&s)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	r.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return err
}

// TestSeedWait seeds a StatefulSet that its controller has not observed at first.
func TestSeedWait(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	statefulSet(t, ns, "db", image, 0)
	deployment(t, ns, "web", image, 0)
	rs := replicaSet(t, ns)
	file := lockFile(t, image, digestA)
	start := func(hidden int) (*late, []string) {
		l := &late{path: appsPath(ns, "statefulsets", "db"), hidden: hidden}
		return l, []string{"seed", file, "statefulset/db", "deployment/web", "--no-headers", "--server=" + l.start(t)}
	}
	l, seed := start(math.MaxInt)
	const notObserved = "statefulset/db: its controller has not observed its latest change yet"
	r := kubectl.in(t, ns, append(seed, "--dry-run=server")...)
	if r.code != 1 || r.err != "error: "+notObserved+": use --wait\n" || !strings.HasPrefix(r.out, "ReplicaSet/"+rs.Name) || l.responses() != 1 {
		t.Errorf("exit code %d, %q, %q after %d requests", r.code, r.out, r.err, l.responses())
	}
	// The other workload is seeded at once.
	r = kubectl.in(t, ns, append(seed, "--wait", "--timeout=1s")...)
	if r.code != 1 || r.err != "error: timed out waiting: "+notObserved+"\n" || !strings.HasPrefix(r.out, "ReplicaSet/"+rs.Name) || l.responses() < 3 {
		t.Errorf("exit code %d, %q, %q after %d requests", r.code, r.out, r.err, l.responses())
	}
	l, seed = start(3)
	wantTable(t, kubectl.must(t, ns, append(seed, "--wait")...),
		"ReplicaSet/"+rs.Name+" "+image+" aaaaaaaaaaaa unchanged\nStatefulSet/db "+image+" aaaaaaaaaaaa created")
	if l.responses() != 4 {
		t.Errorf("got %d requests, want 4", l.responses())
	}
}

// TestSeedRoles seeds as people with the roles of Kubernetes.
func TestSeedRoles(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	api.apply(t, ns)
	file, manifest := lockFile(t, image, digestA, "postgres:18", digestB), file(t, "web.yaml", manifest(ns))
	kubectl.must(t, ns, "seed", file, "-f", manifest, "--wait", "--dry-run=server")
	seed := []string{"seed", file, "-f", manifest}

	api.allow(t, ns, "seed-viewer", "ClusterRole", "view")
	if r := kubectl.awaitAllowed(t, ns, append(seed, "--as=seed-viewer", "--dry-run=client")...); r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	r := kubectl.in(t, ns, append(seed, "--as=seed-viewer")...)
	r.wantError(t, `User "seed-viewer" cannot create resource "imagepins" in API group "imagepin.io" in the namespace "`+ns+`"`)
	if n := strings.Count(r.err, "cannot create"); n != 1 {
		t.Errorf("the error says it %d times: %s", n, r.err)
	}
	if pins := api.pins(t, ns); len(pins) != 0 {
		t.Errorf("got %v", pins)
	}
	api.allow(t, ns, "seed-editor", "ClusterRole", "edit")
	if r := kubectl.awaitAllowed(t, ns, append(seed, "--as=seed-editor")...); r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	if r := kubectl.awaitAllowed(t, ns, append(seed[:1:1], lockFile(t, image, digestB), "deployment/web", "--force", "--as=seed-editor")...); r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	if n := len(api.pins(t, ns)); n != 2 {
		t.Errorf("got %d ImagePins, want 2", n)
	}
}

// apply creates the objects of manifest.
func (s *server) apply(t *testing.T, ns string) {
	t.Helper()
	s.must(t, "POST", appsPath(ns, "deployments", ""), &apps.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{
		Replicas: new(int32), Selector: labeled("web"), Template: shopTemplate("web", image),
	}}, nil)
	s.must(t, "POST", appsPath(ns, "statefulsets", ""), &apps.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: apps.StatefulSetSpec{
		Replicas: new(int32), Selector: labeled("db"), Template: shopTemplate("db", "postgres:18"),
	}}, nil)
}

// manifest returns manifests of two workloads, and of objects of other kinds, which seed does not read. seed reads the
// pod templates of the workloads in the cluster.
func manifest(ns string) string {
	return `apiVersion: v1
kind: Secret
metadata: {name: not-applied, namespace: ` + ns + `}
---
apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: ` + ns + `}}
- {apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: ` + ns + `}}
`
}

func TestSeedErrors(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 0)
	rs := replicaSet(t, ns)
	good := lockFile(t, image, digestA)
	other := file(t, "other.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}\n")
	noTags := file(t, "no-tags.lock", "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages: [{image: shop/web@"+digestA+"}]\n")
	for _, tc := range []struct {
		args string
		want string
	}{
		{"", "LOCK is required"},
		{good, "one of KIND/NAME, --filename, --kustomize, --selector and --all is required"},
		{good + " deployment/web --all", "one of KIND/NAME, --filename, --kustomize, --selector and --all is required"},
		{good + " deployment/web -A", "--all-namespaces needs --all or --selector"},
		{good + " web", `the argument "web" must be RESOURCE/NAME`},
		{good + " deployment/none", `Error from server (NotFound): deployments.apps "none" not found`},
		{good + " -f " + other, `deployments.apps "other" not found: apply the manifest first`},
		{good + " configmap/none", `configmaps "none" not found`},
		{good + " deployment/web -o name --dry-run=all", "Invalid dry-run value (all)"},
		{good + " deployment/web -o table", `unable to match a printer suitable for the output format "table"`},
		{filepath.Join(t.TempDir(), "none.lock") + " --all", "no such file or directory"},
		{other + " --all", other + ": InvalidLock"},
		{noTags + " --all", noTags + ": it names no tags: its images need the annotation kbld.carvel.dev/id"},
	} {
		kubectl.in(t, ns, append([]string{"seed"}, strings.Fields(tc.args)...)...).wantError(t, tc.want)
	}
	// It goes on with other arguments.
	r := kubectl.in(t, ns, "seed", good, "deployment/none", "deployment/web", "--no-headers")
	wantTable(t, r.out, "ReplicaSet/"+rs.Name+" "+image+" aaaaaaaaaaaa created")
	if r.code != 1 || !strings.Contains(r.err, `deployments.apps "none" not found`) {
		t.Errorf("exit code %d, %q", r.code, r.err)
	}
	if r := kubectl.in(t, ns, "seed", good, "-l", "app=none"); r.code != 0 || r.out != "" || r.err != "No workloads found.\n" {
		t.Errorf("exit code %d, %q, %q", r.code, r.out, r.err)
	}
	// A paused Deployment gets no revision of a new template.
	paused := map[string]any{"spec": map[string]any{"paused": true, "template": map[string]any{"metadata": map[string]any{"annotations": map[string]string{"change": "1"}}}}}
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), paused, nil)
	kubectl.in(t, ns, "seed", good, "deployment/web", "--wait").wantError(t,
		"deployment/web has no ReplicaSet of its current template, because it is paused: Kubernetes creates it after kubectl rollout resume")
}
