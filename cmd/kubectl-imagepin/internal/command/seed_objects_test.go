package command

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A list omits what another object controls, and finished Jobs.
func TestOwn(t *testing.T) {
	controlled := map[string]any{"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1", "controller": true}}}
	owned := map[string]any{"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "1"}}}
	status := func(typ, status string) map[string]any {
		return map[string]any{"conditions": []any{map[string]any{"type": "Suspended", "status": "False"}, map[string]any{"type": typ, "status": status}}}
	}
	for _, tc := range []struct {
		name, kind       string
		metadata, status map[string]any
		want             bool
	}{
		{"Deployment", "Deployment", nil, status("Available", "True"), true},
		{"its ReplicaSet", "ReplicaSet", controlled, nil, false},
		{"ReplicaSet with another owner", "ReplicaSet", owned, nil, true},
		{"new Job", "Job", nil, nil, true},
		{"suspended Job", "Job", nil, status("Suspended", "True"), true},
		{"complete Job", "Job", nil, status("Complete", "True"), false},
		{"failed Job", "Job", nil, status("Failed", "True"), false},
		{"Job that has not failed", "Job", nil, status("Failed", "False"), true},
	} {
		obj := &unstructured.Unstructured{Object: map[string]any{"kind": tc.kind}}
		if tc.metadata != nil {
			obj.Object["metadata"] = tc.metadata
		}
		if tc.status != nil {
			obj.Object["status"] = tc.status
		}
		if got := own(obj); got != tc.want {
			t.Errorf("%s: got %v", tc.name, got)
		}
	}
}
