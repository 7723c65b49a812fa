package agree

import (
	"maps"
	"slices"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// workload is a kind of workloads with three pods, one on each node.
type workload struct {
	kind, resource string
	object         func(r *rig, name string) any
}

// revisioned are the kinds whose revisions are ControllerRevisions.
var revisioned = []workload{
	{"DaemonSet", "daemonsets", func(r *rig, name string) any {
		template := r.template(name)
		template.Spec.TopologySpreadConstraints = nil
		return &apps.DaemonSet{
			ObjectMeta: meta.ObjectMeta{Name: name},
			Spec:       apps.DaemonSetSpec{Selector: selector(name), Template: template},
		}
	}},
	{"StatefulSet", "statefulsets", func(r *rig, name string) any {
		template := r.template(name)
		template.Spec.TopologySpreadConstraints[0].MatchLabelKeys = []string{apps.ControllerRevisionHashLabelKey}
		return &apps.StatefulSet{
			ObjectMeta: meta.ObjectMeta{Name: name},
			Spec: apps.StatefulSetSpec{
				Replicas: new(int32(3)), Selector: selector(name), Template: template, ServiceName: name,
				PodManagementPolicy: apps.ParallelPodManagement,
			},
		}
	}},
}

// TestRevisions runs two revisions of a DaemonSet and of a StatefulSet. The first pods of each start at one time, and the
// registry gives each node another digest. Each revision has one digest, and its ImagePin has its ControllerRevision as
// the owner. An undo brings back the digest of the first revision.
func TestRevisions(t *testing.T) {
	t.Parallel()
	for _, c := range revisioned {
		t.Run(c.kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, three)
			race, _ := r.moving(3, 3)
			r.do("POST", r.apps(c.resource), c.object(r, "web"), nil)
			pods := r.running("web", 3, rollout, "1")
			race.finish()
			first := r.wantRevision(pods, c.kind)

			// The pods of the second revision start one after the other. The tag moves after the first.
			second := r.push("2")
			r.roll(r.apps(c.resource, "web"), rollout, "2")
			await[core.Pod](t, r.core("pods"), appLabel+"=web", "a pod of the second revision runs", func(pods []core.Pod) bool {
				return slices.ContainsFunc(pods, func(p core.Pod) bool { return p.Annotations[rollout] == "2" && digestOf(p) != "" })
			})
			r.push("3")
			pods = r.running("web", 3, rollout, "2")
			r.wantDigest(pods, second)
			if again := r.wantRevision(pods, c.kind); again.Name == first.Name {
				t.Errorf("both revisions have the ImagePin %s", first.Name)
			}

			// The first template again is the first revision again.
			r.roll(r.apps(c.resource, "web"), rollout, "1")
			pods = r.running("web", 3, rollout, "1")
			r.wantDigest(pods, first.Spec.Digest)
			revision := pods[0].Labels[apps.ControllerRevisionHashLabelKey]
			if again := r.pinOf(meta.GetControllerOf(&pods[0]).UID, revision); again.UID != first.UID {
				t.Errorf("the first revision has another ImagePin, %s, than before, %s", again.Name, first.Name)
			}
		})
	}
}

// wantRevision is agreed for pods with a ControllerRevision.
func (r *rig) wantRevision(pods []core.Pod, kind string) v1alpha1.ImagePin {
	r.t.Helper()
	revision := pods[0].Labels[apps.ControllerRevisionHashLabelKey]
	pin := r.agreed(pods, revision)
	if pin.Spec.Owner.Kind != kind {
		r.t.Errorf("ImagePin %s is for a %s, want a %s", pin.Name, pin.Spec.Owner.Kind, kind)
	}
	var list apps.ControllerRevisionList
	r.do("GET", r.apps("controllerrevisions"), nil, &list)
	for _, c := range list.Items {
		for _, owner := range pin.OwnerReferences {
			if owner.UID == c.UID && owner.Kind == "ControllerRevision" {
				return pin
			}
		}
	}
	r.t.Errorf("ImagePin %s is owned by %v, want a ControllerRevision", pin.Name, pin.OwnerReferences)
	return pin
}

// jobTemplate returns the template of Jobs with two pods, which end at once.
func (r *rig) jobTemplate(name string) batch.JobTemplateSpec {
	template := r.template(name)
	template.Spec.RestartPolicy = core.RestartPolicyNever
	template.Spec.Containers[0].Args = []string{"exit", "0"}
	template.Spec.TopologySpreadConstraints[0].MatchLabelKeys = []string{batch.JobNameLabel}
	return batch.JobTemplateSpec{Spec: batch.JobSpec{Completions: new(int32(2)), Parallelism: new(int32(2)), Template: template}}
}

// completed waits until n Jobs are complete, and checks that each has one digest. It returns
// the digests.
func (r *rig) completed(n int) map[string]bool {
	r.t.Helper()
	jobs := await[batch.Job](r.t, r.batch("jobs"), "", "the Jobs are complete", func(jobs []batch.Job) bool {
		complete := 0
		for _, j := range jobs {
			if j.Status.Succeeded == 2 {
				complete++
			}
		}
		return complete >= n
	})
	digests := map[string]bool{}
	for _, j := range jobs {
		if j.Status.Succeeded != 2 {
			continue // a later run of a CronJob
		}
		var pods core.PodList
		r.do("GET", r.core("pods")+"?labelSelector="+batch.JobNameLabel+"="+j.Name, nil, &pods)
		if len(pods.Items) != 2 {
			r.t.Errorf("Job %s has %d pods, want 2", j.Name, len(pods.Items))
		}
		digests[r.agreed(pods.Items, "").Spec.Digest] = true
	}
	return digests
}

// TestJobs runs a Job, moves the tag, and runs it again under another name. Each has its own ImagePin.
func TestJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	want := map[string]bool{}
	for i, name := range []string{"one", "two"} {
		want[r.push(name)] = true
		r.do("POST", r.batch("jobs"), &batch.Job{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: r.jobTemplate(name).Spec}, nil)
		r.completed(i + 1)
	}
	if got := r.completed(2); !maps.Equal(got, want) {
		t.Errorf("the Jobs ran %v, want %v", got, want)
	}
}

// TestCronJob runs a CronJob by hand, moves the tag, and waits for its next run. Each run has its own ImagePin.
func TestCronJob(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	want := map[string]bool{r.push("one"): true}
	cron := &batch.CronJob{
		ObjectMeta: meta.ObjectMeta{Name: "report"},
		Spec:       batch.CronJobSpec{Schedule: "* * * * *", ConcurrencyPolicy: batch.ForbidConcurrent, JobTemplate: r.jobTemplate("report")},
	}
	cron.Spec.Suspend = new(true)
	r.do("POST", r.batch("cronjobs"), cron, cron)
	// kubectl create job --from.
	r.do("POST", r.batch("jobs"), &batch.Job{
		ObjectMeta: meta.ObjectMeta{
			Name: "by-hand", Annotations: map[string]string{"cronjob.kubernetes.io/instantiate": "manual"},
			OwnerReferences: []meta.OwnerReference{*meta.NewControllerRef(cron, batch.SchemeGroupVersion.WithKind("CronJob"))},
		},
		Spec: cron.Spec.JobTemplate.Spec,
	}, nil)
	r.completed(1)
	want[r.push("two")] = true
	r.patch(r.batch("cronjobs", "report"), map[string]any{"spec": map[string]any{"suspend": false}})
	if got := r.completed(2); !maps.Equal(got, want) {
		t.Errorf("the Jobs ran %v, want %v", got, want)
	}
}
