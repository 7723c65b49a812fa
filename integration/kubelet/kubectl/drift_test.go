package kubectl

import (
	"encoding/json"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	image   = "registry.example.com/shop/web:v7"
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestDrift(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 3)
	pods := run(t, ns, 3, digestA, digestA, digestB)
	rs := ownerOf(pods[0])

	t.Run("table", func(t *testing.T) {
		r := kubectl.in(t, ns, "drift")
		if r.code != 10 || r.err != "" {
			t.Errorf("exit code %d, stderr %q, want 10 and nothing", r.code, r.err)
		}
		wantTable(t, r.out, `
			OWNER                   REVISION CONTAINER IMAGE      DIGEST       PODS NODES
			ReplicaSet/`+rs.Name+`  <none>   web       `+image+`  aaaaaaaaaaaa 2    n1,n2
			ReplicaSet/`+rs.Name+`  <none>   web       `+image+`  bbbbbbbbbbbb 1    n1`)
	})
	t.Run("wide", func(t *testing.T) {
		wantTable(t, kubectl.in(t, ns, "drift", "-o", "wide", "--no-headers", "--chunk-size=1").out, `
			ReplicaSet/`+rs.Name+` <none> web `+image+` `+digestA+` 2 n1,n2 `+pods[0].Name+`,`+pods[1].Name+`
			ReplicaSet/`+rs.Name+` <none> web `+image+` `+digestB+` 1 n1 `+pods[2].Name)
	})
	t.Run("name", func(t *testing.T) {
		if r := kubectl.in(t, ns, "drift", "-o", "name"); r.out != "replicaset.apps/"+rs.Name+"\n" {
			t.Errorf("got %q", r.out)
		}
	})
	t.Run("json", func(t *testing.T) {
		var report struct {
			APIVersion, Kind string
			Pods             int
			Owners           []struct {
				Namespace, Kind, Name string
				Drift                 bool
				Containers            []struct {
					Builds []struct {
						Digest string
						Pods   []struct{ Name, Node string }
					}
				}
			}
		}
		r := kubectl.in(t, ns, "drift", "-o", "json")
		if err := json.Unmarshal([]byte(r.out), &report); err != nil {
			t.Fatal(err)
		}
		if report.Kind != "DriftReport" || report.Pods != 3 || len(report.Owners) != 1 || !report.Owners[0].Drift || report.Owners[0].Namespace != ns {
			t.Fatalf("got %+v", report)
		}
		if builds := report.Owners[0].Containers[0].Builds; len(builds) != 2 || builds[1].Digest != digestB || builds[1].Pods[0].Name != pods[2].Name {
			t.Errorf("got %+v", builds)
		}
	})
	t.Run("jsonpath", func(t *testing.T) {
		if r := kubectl.in(t, ns, "drift", "-o", "jsonpath={.owners[*].name}"); r.out != rs.Name || r.code != 10 {
			t.Errorf("got %q, exit code %d", r.out, r.code)
		}
	})
	t.Run("one node", func(t *testing.T) {
		// The pods on n1 run both digests, the one on n2 runs one.
		r := kubectl.in(t, ns, "drift", "--field-selector", "spec.nodeName=n2")
		if r.code != 0 || r.err != "No drift found in 1 pod of 1 owner.\n" {
			t.Errorf("exit code %d, stderr %q", r.code, r.err)
		}
	})
	t.Run("labels", func(t *testing.T) {
		r := kubectl.in(t, ns, "drift", "-l", "app=other")
		if r.code != 0 || r.err != "No drift found in 0 pods of 0 owners.\n" {
			t.Errorf("exit code %d, stderr %q", r.code, r.err)
		}
	})
	t.Run("all namespaces", func(t *testing.T) {
		r := kubectl.in(t, ns, "drift", "-A", "--no-headers")
		if r.code != 10 || !strings.Contains(r.out, ns+" ") {
			t.Errorf("exit code %d, output %q, want drift in %s", r.code, r.out, ns)
		}
	})
}

func TestNoDrift(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	statefulSet(t, ns, "db", image, 3)
	pods := run(t, ns, 3, digestA, digestA, "")
	r := kubectl.in(t, ns, "drift")
	if r.code != 0 || r.out != "" || r.err != "No drift found in 2 pods of 1 owner.\n" {
		t.Errorf("exit code %d, %q, %q: the pod that pulls is not counted", r.code, r.out, r.err)
	}
	r = kubectl.in(t, ns, "drift", "--all")
	wantTable(t, r.out, `
		OWNER           REVISION                       CONTAINER IMAGE      DIGEST       PODS NODES
		StatefulSet/db  `+ownerOf(pods[0]).Revision+`  web       `+image+`  aaaaaaaaaaaa 2    n1,n2`)
	if r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	if r := kubectl.in(t, ns, "drift", "-o", "yaml"); r.code != 0 || !strings.Contains(r.out, "owners: []") {
		t.Errorf("exit code %d, %s", r.code, r.out)
	}
}

// The digest of a configuration, which nodes report for an imported image, cannot be compared with one of a registry.
func TestDriftOfImportedImage(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 2)
	pods := run(t, ns, 2, digestA)
	imported := core.PodStatus{ContainerStatuses: []core.ContainerStatus{{Name: "web", Image: image, ImageID: digestB}}}
	api.must(t, "PATCH", podPath(ns, pods[1].Name)+"/status", map[string]any{"status": imported}, nil)
	r := kubectl.in(t, ns, "drift")
	if want := "Warning: ReplicaSet/" + ownerOf(pods[0]).Name + " in namespace " + ns + ": cannot compare all pods of container web"; r.code != 0 || !strings.HasPrefix(r.err, want) {
		t.Errorf("exit code %d, stderr %q, want %q", r.code, r.err, want)
	}
}

// A user who can list pods and do nothing else can look for drift.
func TestDriftNeedsOnlyPods(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 2)
	run(t, ns, 2, digestA, digestB)
	api.must(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/roles", &rbac.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "lister"},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}, nil)
	kubectl.in(t, ns, "drift", "--as=lister").wantError(t, "Error from server (Forbidden)", `User "lister" cannot list resource "pods"`)
	api.allow(t, ns, "lister", "Role", "lister")
	if r := kubectl.awaitAllowed(t, ns, "drift", "--as=lister"); r.code != 10 {
		t.Errorf("exit code %d", r.code)
	}
}
