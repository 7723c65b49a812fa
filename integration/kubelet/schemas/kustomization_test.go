package schemas

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// TestKustomizations builds each kustomization as "kubectl apply -k" does, decodes its objects and compares them by kind,
// namespace and name.
func TestKustomizations(t *testing.T) {
	decoder := strict(t)
	cluster := []string{
		"ClusterRole//imagepin-edit", "ClusterRole//imagepin-node", "ClusterRole//imagepin-view",
		"ClusterRoleBinding//imagepin-node", "CustomResourceDefinition//imagepins.imagepin.io", "FlowSchema//imagepin",
		"PriorityLevelConfiguration//imagepin", "ValidatingAdmissionPolicy//imagepin-node",
		"ValidatingAdmissionPolicyBinding//imagepin-node",
	}
	for _, c := range []struct {
		dir  string
		want []string // some of the objects
		all  bool     // whether there are no others
	}{
		{"../../../contrib/kubernetes", append([]string{"DaemonSet/kube-system/imagepin-serve", "DaemonSet/kube-system/imagepin-remove"}, cluster...), false},
		{"../../../contrib/kubernetes/cluster", cluster, true},
		{"../../../contrib/kubernetes/follow", []string{
			"ServiceAccount/kube-system/imagepin-follow", "ClusterRole//imagepin-follow", "ClusterRoleBinding//imagepin-follow",
			"CronJob/kube-system/imagepin-follow",
		}, true},
		{"../../../contrib/kubernetes/protect", []string{
			"ClusterRole//imagepin-protect", "ClusterRoleBinding//imagepin-protect", "ConfigMap/kube-system/imagepin-protect", "CronJob/kube-system/imagepin-protect",
			"Role/kube-system/imagepin-protect", "RoleBinding/kube-system/imagepin-protect", "ServiceAccount/kube-system/imagepin-protect",
		}, true},
		{"../../../contrib/kubernetes/monitoring", []string{
			"ConfigMap/monitoring/imagepin-dashboard", "PrometheusRule/monitoring/imagepin", "ScrapeConfig/monitoring/imagepin",
		}, true},
	} {
		t.Run(c.dir, func(t *testing.T) {
			objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), c.dir)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]bool)
			for _, o := range objects.Resources() {
				text, err := o.AsYAML()
				if err != nil {
					t.Fatal(err)
				}
				want := schema.GroupVersionKind{Group: o.GetGvk().Group, Version: o.GetGvk().Version, Kind: o.GetKind()}
				if _, kind, err := decoder.Decode(text, nil, nil); err != nil || *kind != want {
					t.Errorf("%s: decoded as %v, %v", o.CurId(), kind, err)
				}
				got[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] = true
			}
			for _, name := range c.want {
				if !got[name] {
					t.Errorf("there is no %s", name)
				}
			}
			if c.all && len(got) != len(c.want) {
				t.Errorf("got %v, want only %v", got, c.want)
			}
		})
	}
}
