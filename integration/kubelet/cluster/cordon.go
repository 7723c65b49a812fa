package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cordon makes the scheduler skip a node, or use it again. Its pods keep running. A cordon returns when the scheduler knows
// it, which follows the API server with a delay.
func (c *Cluster) Cordon(ctx context.Context, node string, cordoned bool) error {
	change := map[string]any{"spec": map[string]any{"unschedulable": cordoned}}
	if err := c.Do(ctx, "PATCH", "/api/v1/nodes/"+node, change, nil); err != nil || !cordoned {
		return err
	}
	for {
		if known, err := c.skipped(ctx, node); err != nil || known {
			return err
		}
	}
}

// skipped reports whether the scheduler skips a node because of a cordon. It creates a pod that no node can run.
func (c *Cluster) skipped(ctx context.Context, node string) (known bool, _ error) {
	probe := &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "cordon-"},
		Spec: core.PodSpec{
			AutomountServiceAccountToken: new(bool),
			Affinity: &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{
				NodeSelectorTerms: []core.NodeSelectorTerm{{
					MatchFields: []core.NodeSelectorRequirement{{Key: "metadata.name", Operator: core.NodeSelectorOpIn, Values: []string{node}}},
				}},
			}}},
			Containers: []core.Container{{
				Name: "probe", Image: "registry.invalid/probe",
				Resources: core.ResourceRequirements{Requests: core.ResourceList{core.ResourceCPU: resource.MustParse("1000000")}},
			}},
		},
	}
	if err := c.Do(ctx, "POST", pods, probe, probe); err != nil {
		return false, fmt.Errorf("create a pod that is not scheduled: %w", err)
	}
	_, err := c.WaitPod(ctx, probe.Name, func(p *core.Pod) (bool, error) {
		for _, condition := range p.Status.Conditions {
			if condition.Type == core.PodScheduled && condition.Reason == core.PodReasonUnschedulable {
				known = strings.Contains(condition.Message, "were unschedulable")
				return true, nil
			}
		}
		return false, nil
	})
	return known, errors.Join(err, c.Do(ctx, "DELETE", pods+"/"+probe.Name, &meta.DeleteOptions{GracePeriodSeconds: new(int64)}, nil))
}
