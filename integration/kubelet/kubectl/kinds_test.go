package kubectl

import (
	"context"
	"testing"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/testkit"
)

// A CronJob has no ImagePins. Its Jobs have them.
func TestCronJob(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	suspended := true
	c := &batch.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "report"}, Spec: batch.CronJobSpec{
		Schedule: "0 0 1 1 *", Suspend: &suspended, JobTemplate: batch.JobTemplateSpec{Spec: batch.JobSpec{Template: template(image)}},
	}}
	c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = core.RestartPolicyNever
	api.must(t, "POST", "/apis/batch/v1/namespaces/"+ns+"/cronjobs", c, c)
	// As kubectl create job --from does.
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: "report-1", OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(c, batch.SchemeGroupVersion.WithKind("CronJob")),
	}}, Spec: c.Spec.JobTemplate.Spec}
	api.must(t, "POST", "/apis/batch/v1/namespaces/"+ns+"/jobs", j, nil)
	job(t, ns, "other", image)
	for _, p := range run(t, ns, 2, digestA) {
		api.claim(t, p, image, digestA)
	}
	wantTable(t, kubectl.must(t, ns, "get", "cronjob/report", "--no-headers"), "* Job/report-1 "+image+" aaaaaaaaaaaa * *")
	for _, command := range []string{"explain", "refresh", "rm"} {
		kubectl.in(t, ns, command, "cronjob/report").wantError(t, "error: cronjob/report has no revision", "name a job")
	}
	kubectl.must(t, ns, "rm", "job/report-1")
	if n := len(api.pins(t, ns)); n != 1 {
		t.Errorf("%d ImagePins are left, want that of the other Job", n)
	}
}

// A Deployment that is paused, or whose change is not observed yet, has no current revision.
func TestPausedDeployment(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	run(t, ns, 1, digestA)
	kubectl.must(t, ns, "explain", "deployment/web")
	paused := map[string]any{"spec": map[string]any{"paused": true, "template": map[string]any{"metadata": map[string]any{"annotations": map[string]string{"change": "1"}}}}}
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), paused, nil)
	for _, command := range []string{"explain", "refresh", "rm"} {
		kubectl.in(t, ns, command, "deployment/web").wantError(t, "error: deployment/web has no ReplicaSet of its current template")
	}
	api.must(t, "PATCH", appsPath(ns, "deployments", "web"), map[string]any{"spec": map[string]any{"paused": false}}, nil)
	testkit.EventuallyIn(t, timeout, "the Deployment has a current revision", func(context.Context) (bool, error) {
		return kubectl.in(t, ns, "explain", "deployment/web").code == 0, nil
	})
}

// The plugin does not know the pod template of other kinds. It finds their pods by their controller.
func TestOtherKind(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	rc := &core.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: core.ReplicationControllerSpec{Selector: selector.MatchLabels}}
	rc.Spec.Template = new(template(image))
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/replicationcontrollers", rc, rc)
	ref := *metav1.NewControllerRef(rc, core.SchemeGroupVersion.WithKind("ReplicationController"))
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old-x", OwnerReferences: []metav1.OwnerReference{ref}}, Spec: template(image).Spec}
	api.must(t, "POST", podPath(ns, ""), pod, pod)
	bare := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: template("other").Spec}
	api.must(t, "POST", podPath(ns, ""), bare, nil)
	bind(t, pod, "n1")
	report(t, pod, digestA)

	kubectl.must(t, ns, "set", "rc/old", image, digestB)
	pin := api.pins(t, ns)[pinNameOf(pod, image)]
	wantReference(t, pin, metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "old", UID: rc.UID})
	wantTable(t, kubectl.must(t, ns, "explain", "rc/old", "--resolve=false"), `
		ReplicationController: old
		Namespace: `+ns+`

		Container web
		  Image: `+image+`
		  ImagePin: `+pin.Name+`
		  Digest: `+digestB+`
		  Created: * ago by another client
		  Running: `+digestA+` in 1 pod on n1: differs from the ImagePin`)
	wantTable(t, kubectl.must(t, ns, "get", "rc/old", "--no-headers"), pin.Name+" ReplicationController/old "+image+" bbbbbbbbbbbb <none> *")
	for _, args := range [][]string{{"refresh", "pod/bare"}, {"rm", "pod/bare"}, {"set", "pod/bare", image, digestA}} {
		kubectl.in(t, ns, args...).wantError(t, "error: pod/bare has no controller")
	}

	// It controls a workload, and its pod.
	rs := &apps.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "old-7d4b9c", OwnerReferences: []metav1.OwnerReference{ref}}, Spec: apps.ReplicaSetSpec{
		Replicas: new(int32), Selector: selector, Template: template(image),
	}}
	api.must(t, "POST", appsPath(ns, "replicasets", ""), rs, nil)
	kubectl.must(t, ns, "explain", "rc/old", "--resolve=false")
	kubectl.must(t, ns, "set", "rc/old", image, digestA)

	// It controls only a workload, whose pods are not its own. A user who must not list workloads does not see that.
	api.must(t, "DELETE", podPath(ns, pod.Name), &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, nil)
	for _, args := range [][]string{{"explain", "rc/old"}, {"set", "rc/old", image, digestA}, {"refresh", "rc/old"}, {"rm", "rc/old"}} {
		kubectl.in(t, ns, args...).wantError(t, "error: replicationcontroller/old does not own its pods: name replicaset/old-7d4b9c, or one of its pods")
	}

	api.must(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/roles", &rbac.Role{ObjectMeta: metav1.ObjectMeta{Name: "narrow"}, Rules: []rbac.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"replicationcontrollers"}, Verbs: []string{"get"}},
		{APIGroups: []string{"", "apps", v1alpha1.GroupVersion.Group}, Resources: []string{"pods", "controllerrevisions", v1alpha1.Resource}, Verbs: []string{"list"}},
	}}, nil)
	api.allow(t, ns, "narrow", "Role", "narrow")
	if r := kubectl.awaitAllowed(t, ns, "explain", "rc/old", "--resolve=false", "--as=narrow"); r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}

	// With revisions, the kind defines which one is current, and the plugin does not know it.
	api.must(t, "POST", appsPath(ns, "controllerrevisions", ""), &apps.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "old-1", OwnerReferences: []metav1.OwnerReference{ref}}, Revision: 1, Data: runtime.RawExtension{Raw: []byte("{}")},
	}, nil)
	kubectl.in(t, ns, "explain", "rc/old").wantError(t, "replicationcontroller/old", "name one of its pods")
}
