package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/imagepin/imagepin/integration/kubelet/pool"
)

// Paths of the API.
const (
	deployments = "/apis/apps/v1/namespaces/default/deployments"
	pods        = "/api/v1/namespaces/default/pods"
)

// revision is the annotation of the pod template that the demo changes to roll out another revision.
const revision = "revision"

// deployment returns the Deployment of the demo in its first revision. Each node runs one pod of a revision.
func (d *demo) deployment() *apps.Deployment {
	labels := map[string]string{"app": "web"}
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	return &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: "web"},
		Spec: apps.DeploymentSpec{
			Replicas: new(int32(3)), Selector: &meta.LabelSelector{MatchLabels: labels},
			Strategy: apps.DeploymentStrategy{RollingUpdate: &apps.RollingUpdateDeployment{MaxUnavailable: &one, MaxSurge: &none}},
			Template: core.PodTemplateSpec{
				ObjectMeta: meta.ObjectMeta{Labels: labels, Annotations: map[string]string{revision: "1"}},
				Spec: core.PodSpec{
					HostNetwork: true, AutomountServiceAccountToken: new(bool), TerminationGracePeriodSeconds: new(int64(1)),
					NodeSelector: map[string]string{pool.Label: d.nodes.Name},
					Containers:   []core.Container{{Name: "web", Image: d.reg.Ref(tag), ImagePullPolicy: core.PullAlways}},
					TopologySpreadConstraints: []core.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: core.LabelHostname, WhenUnsatisfiable: core.DoNotSchedule,
						LabelSelector: &meta.LabelSelector{MatchLabels: labels}, MatchLabelKeys: []string{"pod-template-hash"},
					}},
				},
			},
		},
	}
}

// roll changes the pod template, so that the Deployment rolls out a revision.
func (d *demo) roll(ctx context.Context, to string) error {
	return d.kube.Do(ctx, "PATCH", deployments+"/web", map[string]any{"spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{revision: to}},
	}}}, nil)
}

// interrupted rolls out a revision, and moves the tag to a version when the first of its pods runs. Until then, the other
// nodes are cordoned.
func (d *demo) interrupted(ctx context.Context, to, version string, rollOut func() error) error {
	first, others := d.nodes.Members[0], d.nodes.Members[1:]
	for _, m := range others {
		if err := d.kube.Cordon(ctx, m.Name, true); err != nil {
			return err
		}
	}
	if err := rollOut(); err != nil {
		return err
	}
	if _, err := d.running(ctx, to, 1); err != nil {
		return err
	}
	d.say("   %s and %s are cordoned. The first pod of the revision runs on %s.", others[0].Name, others[1].Name, first.Name)
	if err := d.push(ctx, version); err != nil {
		return err
	}
	d.say("   In the registry, %s moves to %s. Then %s and %s are uncordoned, and the rollout continues.", tag, version, others[0].Name, others[1].Name)
	for _, m := range others {
		if err := d.kube.Cordon(ctx, m.Name, false); err != nil {
			return err
		}
	}
	return nil
}

// running waits until n pods of a revision run, and returns them. If n is 3, there are no other pods.
func (d *demo) running(ctx context.Context, of string, n int) ([]core.Pod, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var all core.PodList
		if err := d.kube.Do(ctx, "GET", pods, nil, &all); err != nil {
			return nil, err
		}
		var run []core.Pod
		for _, p := range all.Items {
			if p.Annotations[revision] == of && p.DeletionTimestamp == nil && ready(p) {
				run = append(run, p)
			}
		}
		if len(run) == n && (n < 3 || len(all.Items) == n) {
			return run, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			status, _ := json.Marshal(all.Items)
			return nil, fmt.Errorf("waiting for %d pods of revision %s: %w; the pods are %.4000s", n, of, context.Cause(ctx), status)
		}
	}
}

func ready(p core.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}
