package agree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// followNamespace is the namespace of contrib/kubernetes/follow.
const followNamespace = "kube-system"

// follower is the CronJob of contrib/kubernetes/follow.
type follower struct {
	*rig
	cron batch.CronJob
	runs int
}

// followDir has the manifests of the CronJob.
const followDir = "../../../contrib/kubernetes/follow"

// ofReadme writes the kustomization that the README of followDir shows, with all its parts, and returns its directory.
func ofReadme(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(followDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	in, indent := false, ""
	for line := range strings.Lines(string(readme)) {
		before, language, fence := strings.Cut(line, "```")
		switch {
		case fence:
			in, indent = language == "yaml\n", before
		case in:
			text.WriteString(strings.TrimPrefix(line, indent))
		}
	}
	dir := t.TempDir()
	here, err := filepath.Abs(followDir)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	const remote = "https://github.com/imagepin/imagepin//contrib/kubernetes/follow?ref=main"
	if n := strings.Count(text.String(), remote); n != 1 {
		t.Fatalf("the kustomization has %s %d times, want once:\n%s", remote, n, text.String())
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.Replace(text.String(), remote, manifests, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newFollower installs the kustomization of a directory, with a CronJob that is suspended.
func newFollower(r *rig, dir string) *follower {
	r.t.Helper()
	f := &follower{rig: r}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range objects.Resources() {
		text, err := o.AsYAML()
		if err != nil {
			r.t.Fatal(err)
		}
		path, object := "", any(nil)
		switch o.GetKind() {
		case "CronJob":
			if err := yaml.UnmarshalStrict(text, &f.cron); err != nil {
				r.t.Fatal(err)
			}
			f.adjust()
			path, object = followPath("cronjobs"), &f.cron
		case "ServiceAccount":
			path = "/api/v1/namespaces/" + followNamespace + "/serviceaccounts"
		default:
			path = "/apis/rbac.authorization.k8s.io/v1/" + strings.ToLower(o.GetKind()) + "s"
		}
		if object == nil {
			if object, err = o.Map(); err != nil {
				r.t.Fatal(err)
			}
		}
		f.install(path, o.GetName(), object)
	}
	return f
}

// install creates an object, and deletes it at the end of the test.
func (f *follower) install(path, name string, object any) {
	f.t.Helper()
	f.do("POST", path, object, nil)
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		background := meta.DeletePropagationBackground
		if err := kube.Do(ctx, "DELETE", path+"/"+name, &meta.DeleteOptions{PropagationPolicy: &background}, nil); err != nil {
			f.t.Error(err)
		}
	})
}

func followPath(resource string) string {
	return "/apis/batch/v1/namespaces/" + followNamespace + "/" + resource
}

// adjust changes what the cluster of the test needs: it has no network and no addresses of services, and its API server does not
// mount the credential of the ServiceAccount, which a cluster does.
func (f *follower) adjust() {
	f.t.Helper()
	f.cron.Spec.Suspend = new(true)
	spec := &f.cron.Spec.JobTemplate.Spec.Template.Spec
	spec.HostNetwork, spec.NodeSelector = true, map[string]string{pool.Label: f.pool.Name}
	host, port, _ := strings.Cut(kube.Server(), ":")
	c := &spec.Containers[0]
	c.Image = f.pushPlugin()
	c.Env = append(c.Env, core.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: host}, core.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: port})
	c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	authority, err := os.ReadFile(filepath.Join(kube.Dir(), "certs", "apiserver.crt"))
	if err != nil {
		f.t.Fatal(err)
	}
	const root = "kube-root-ca.crt"
	f.install("/api/v1/namespaces/"+followNamespace+"/configmaps", root, &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Name: root}, Data: map[string]string{"ca.crt": string(authority)},
	})
	spec.Volumes = append(spec.Volumes, core.Volume{Name: "token", VolumeSource: core.VolumeSource{Projected: &core.ProjectedVolumeSource{
		Sources: []core.VolumeProjection{
			{ServiceAccountToken: &core.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &core.ConfigMapProjection{LocalObjectReference: core.LocalObjectReference{Name: root}}},
			{DownwardAPI: &core.DownwardAPIProjection{Items: []core.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &core.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
			}}},
		},
	}}})
}

// pushPlugin pushes an image with the plugin, and returns its reference.
func (f *follower) pushPlugin() string {
	f.t.Helper()
	program, err := os.ReadFile(filepath.Join(node.BinDir(), "kubectl-imagepin"))
	if err != nil {
		f.t.Fatalf("%v; run make kubectl-imagepin", err)
	}
	img, err := images.Data(images.Options{Files: []images.Files{{"/usr/bin/kubectl-imagepin": program}}})
	if err != nil {
		f.t.Fatal(err)
	}
	testkit.Push(f.t, f.reg, "imagepin/kubectl-imagepin:v0.1.0", img)
	return f.reg.Ref("imagepin/kubectl-imagepin:v0.1.0")
}

// run runs a Job of the CronJob, as kubectl create job does, and returns its log. It fails the test unless the Job succeeds.
func (f *follower) run() string {
	f.t.Helper()
	return f.runJob(true)
}

// runJob runs a Job, and fails the test unless it ends as expected.
func (f *follower) runJob(succeeds bool) string {
	f.t.Helper()
	f.runs++
	name := fmt.Sprintf("follow-%s-%d", f.pool.Name, f.runs)
	f.install(followPath("jobs"), name, &batch.Job{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: f.cron.Spec.JobTemplate.Spec})
	job := await[batch.Job](f.t, followPath("jobs"), "", "the Job "+name+" has ended", func(jobs []batch.Job) bool {
		return slices.ContainsFunc(jobs, func(j batch.Job) bool { return j.Name == name && j.Status.Succeeded+j.Status.Failed > 0 })
	})
	var pods core.PodList
	f.do("GET", "/api/v1/namespaces/"+followNamespace+"/pods?labelSelector="+batch.JobNameLabel+"="+name, nil, &pods)
	if len(pods.Items) != 1 {
		f.t.Fatalf("got %d pods of the Job", len(pods.Items))
	}
	log := ""
	for _, m := range f.pool.Members {
		if m.Name == pods.Items[0].Spec.NodeName {
			var err error
			if log, err = m.Kubelet.Log(&pods.Items[0], "refresh", 0); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	for _, j := range job {
		if j.Name == name && (j.Status.Succeeded == 1) != succeeds {
			f.t.Fatalf("the Job has succeeded: %v, want %v:\n%s", !succeeds, succeeds, log)
		}
	}
	return log
}

// wantLookups fails the test unless the registry got n requests for the tag since the last call, all of them HEAD.
func (f *follower) wantLookups(when string, n int) {
	f.t.Helper()
	ofTag := func(q registry.Request) bool {
		return q.Repository == repository && q.Kind == registry.Manifest && !q.ByDigest()
	}
	if all, heads := f.reg.Count(ofTag), f.reg.Count(ofTag, registry.Is("HEAD", "")); all != n || heads != n {
		f.t.Errorf("%s: got %d requests for the tag, %d of them HEAD, want %d:\n%s", when, all, heads, n, f.reg.Dump())
	}
	f.reg.Reset()
}

// TestFollow runs the CronJob of contrib/kubernetes/follow, with the pull policies that nodes need by their new_revision. The tests run
// one after the other, because the CronJob restarts workloads of all namespaces.
func TestFollow(t *testing.T) {
	t.Parallel()
	t.Run("IfNotPresent", followIfNotPresent)
	t.Run("Always", followAlways)
}

// followAlways restarts the Deployment that follows its tags when the tag has moved, and only then, and leaves another one alone.
func followAlways(t *testing.T) {
	r := newRig(t, three)
	first := r.push("1")
	for _, name := range []string{"web", "other"} {
		d := r.deployment(name, 1)
		if name == "web" {
			d.Annotations = map[string]string{"imagepin.io/follow-tags": "true"}
		}
		r.do("POST", r.apps("deployments"), d, nil)
	}
	pod := func(name string) core.Pod { return r.running(name, 1, rollout, "1")[0] }
	web, other := pod("web"), pod("other")
	r.wantDigest([]core.Pod{web, other}, first)
	f := newFollower(r, followDir)
	r.deleteFollowing("web")

	unchanged := func(when string, web core.Pod) {
		t.Helper()
		var list apps.DeploymentList
		r.do("GET", r.apps("deployments"), nil, &list)
		for _, d := range list.Items {
			if d.Name == "other" && d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "" {
				t.Errorf("%s: the Deployment without the annotation is restarted", when)
			}
		}
		for name, was := range map[string]types.UID{"web": web.UID, "other": other.UID} {
			if now := pod(name); now.UID != was {
				t.Errorf("%s: %s has another pod, %s", when, name, now.Name)
			}
		}
	}
	r.reg.Reset()
	if log := f.run(); !strings.Contains(log, "deployment.apps/web not restarted, no digest has changed") {
		t.Errorf("the tag has not moved: got\n%s", log)
	}
	unchanged("the tag has not moved", web)
	f.wantLookups("the tag has not moved", 1)

	second := r.push("2")
	if log := f.run(); !strings.Contains(log, "deployment.apps/web restarted") || strings.Contains(log, "/other") {
		t.Errorf("the tag has moved: got\n%s", log)
	}
	web = r.followed("web", web, second)
	unchanged("the tag has moved", web)
	f.wantLookups("the tag has moved: one by the Job, one by the node", 2)
	f.run()
	unchanged("the tag has not moved again", web)
	f.wantLookups("the tag has not moved again", 1)

	// On its schedule.
	third := r.push("3")
	r.patch(followPath("cronjobs")+"/"+f.cron.Name, map[string]any{"spec": map[string]any{"suspend": false, "schedule": "* * * * *"}})
	web = r.followed("web", web, third)
	unchanged("on its schedule", web)
	r.agreed([]core.Pod{web}, "")
}

// followIfNotPresent runs a Deployment with IfNotPresent on a node with new_revision = "resolve". It is refused without the flag that
// states it, and restarted with the flag, as README.md sets it. One with Never is always refused.
func followIfNotPresent(t *testing.T) {
	r := newRig(t, newPool(t, "follow", poolOptions{cluster: resolveAll, Options: pool.Options{Nodes: 1}}))
	first := r.push("1")
	pods := map[string]core.Pod{}
	for _, w := range []struct {
		name   string
		policy core.PullPolicy
	}{{"web", core.PullIfNotPresent}, {"never", core.PullNever}} {
		d := r.deployment(w.name, 1)
		d.Annotations = map[string]string{"imagepin.io/follow-tags": "true"}
		d.Spec.Template.Spec.Containers[0].ImagePullPolicy = w.policy
		r.do("POST", r.apps("deployments"), d, nil)
		pods[w.name] = r.running(w.name, 1, rollout, "1")[0]
		r.wantDigest([]core.Pod{pods[w.name]}, first)
	}
	f := newFollower(r, ofReadme(t))
	r.deleteFollowing("web", "never")

	second := r.push("2")
	r.reg.Reset()
	const never = "c has the pull policy Never, with which nodes pull nothing"
	c := &f.cron.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	with := c.Args
	c.Args = slices.DeleteFunc(slices.Clone(with), func(arg string) bool { return arg == "--new-revision=resolve" })
	if len(c.Args) != len(with)-1 {
		t.Fatalf("the kustomization of README.md has the arguments %q", with)
	}
	log := f.runJob(false)
	for _, want := range []string{"c has the pull policy IfNotPresent", "--new-revision=resolve", never} {
		if !strings.Contains(log, want) {
			t.Errorf("without the flag: the log does not have %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "restarted") {
		t.Errorf("without the flag: got\n%s", log)
	}
	f.wantLookups("without the flag", 0)

	c.Args = with
	log = f.runJob(false)
	if !strings.Contains(log, "deployment.apps/web restarted") || !strings.Contains(log, never) || strings.Contains(log, "deployment.apps/never") {
		t.Errorf("with the flag: got\n%s", log)
	}
	web := r.followed("web", pods["web"], second)
	r.agreed([]core.Pod{web}, "")
	f.wantLookups("one by the Job, one by the node", 2)
	if now := r.running("never", 1, rollout, "1")[0]; now.UID != pods["never"].UID {
		t.Errorf("the Deployment with Never has another pod, %s", now.Name)
	}

	r.do("DELETE", r.apps("deployments", "never"), nil, nil)
	if log := f.run(); !strings.Contains(log, "deployment.apps/web not restarted, no digest has changed") {
		t.Errorf("the tag has not moved: got\n%s", log)
	}
	f.wantLookups("the tag has not moved", 1)
}

// deleteFollowing deletes Deployments at the end of the test, if it has not. The namespace is deleted later, and the registry is away
// by then: a run of another test must not look the tags up.
func (r *rig) deleteFollowing(names ...string) {
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, name := range names {
			if err := kube.Do(ctx, "DELETE", r.apps("deployments", name), nil, nil); err != nil && !apierrors.IsNotFound(err) {
				r.t.Error(err)
			}
		}
	})
}

// followed waits until a Deployment has one pod, which is not an old one, and checks its digest.
func (r *rig) followed(app string, old core.Pod, digest string) core.Pod {
	r.t.Helper()
	pods := await[core.Pod](r.t, r.core("pods"), appLabel+"="+app, "the Deployment has another pod", func(pods []core.Pod) bool {
		return len(pods) == 1 && pods[0].UID != old.UID && pods[0].DeletionTimestamp == nil && digestOf(pods[0]) != ""
	})
	r.wantDigest(pods, digest)
	return pods[0]
}
