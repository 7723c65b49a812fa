package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"
)

// TestFilesAreListed checks that the kustomization has each manifest of its directory.
func TestFilesAreListed(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(kustomization, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var listed struct{ Resources []string }
	if err := yaml.Unmarshal(b, &listed); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(kustomization, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := filepath.Base(f); name != "kustomization.yaml" && !slices.Contains(listed.Resources, name) {
			t.Errorf("%s is not in the kustomization", name)
		}
	}
}

// TestPolicyTypes waits until the controller has checked the types of the policy's expressions against the CRD.
func TestPolicyTypes(t *testing.T) {
	t.Parallel()
	name := theObject[admission.ValidatingAdmissionPolicy](t).Name
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?watch=true&fieldSelector=metadata.name="
	p := await(t, api, policies+name, "the expressions are checked", func(_ watch.EventType, p *admission.ValidatingAdmissionPolicy) bool {
		return p.Status.ObservedGeneration == p.Generation && p.Status.TypeChecking != nil
	})
	for _, w := range p.Status.TypeChecking.ExpressionWarnings {
		t.Errorf("%s: %s", w.FieldRef, w.Warning)
	}
}

// TestFlowSchemaHasItsLevel waits until the API server reports that the FlowSchema's priority level exists.
func TestFlowSchemaHasItsLevel(t *testing.T) {
	t.Parallel()
	name := theObject[flowcontrol.FlowSchema](t).Name
	schemas := flowControl + "flowschemas?watch=true&fieldSelector=metadata.name="
	await(t, api, schemas+name, "the FlowSchema has its priority level", func(_ watch.EventType, s *flowcontrol.FlowSchema) bool {
		return slices.ContainsFunc(s.Status.Conditions, func(c flowcontrol.FlowSchemaCondition) bool {
			return c.Type == flowcontrol.FlowSchemaConditionDangling && c.Status == flowcontrol.ConditionFalse
		})
	})
}

// TestOnlyNodesAreBound checks that the manifests give permissions to nodes only. People get theirs from the roles of
// Kubernetes.
func TestOnlyNodesAreBound(t *testing.T) {
	t.Parallel()
	b := theObject[rbac.ClusterRoleBinding](t)
	want := rbac.Subject{APIGroup: rbac.GroupName, Kind: rbac.GroupKind, Name: "system:nodes"}
	if len(b.Subjects) != 1 || b.Subjects[0] != want {
		t.Errorf("got subjects %v, want %v", b.Subjects, want)
	}
}
