package kubectl

import (
	"encoding/json"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExplainDeployment(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 2)
	pods := run(t, ns, 2, digestA, digestB)
	rs := ownerOf(pods[0]).Name

	wantTable(t, kubectl.must(t, ns, "explain", "deployment/web"), `
		Deployment: web
		Namespace: `+ns+`
		Owner: ReplicaSet/`+rs+`

		Container web
		  Image: `+image+`
		  ImagePin: <none>: there is no ImagePin `+pinNameOf(pods[0], image)+`
		  Running: `+digestA+` in 1 pod on n1
		  `+digestB+` in 1 pod on n2`)

	pin := api.claim(t, pods[0], image, digestA)
	explained := `
		Namespace: ` + ns + `
		Owner: ReplicaSet/` + rs + `

		Container web
		  Image: ` + image + `
		  ImagePin: ` + pin.Name + `
		  Digest: ` + digestA + `
		  Created: * ago by node n1 for pod ` + pods[0].Name + `
		  Running: `
	wantTable(t, kubectl.must(t, ns, "explain", "deploy/web"), "Deployment: web"+explained+
		digestA+" in 1 pod on n1\n"+digestB+" in 1 pod on n2: differs from the ImagePin")
	wantTable(t, kubectl.must(t, ns, "explain", pods[0].Name), "Pod: "+pods[0].Name+explained+digestA+" in 1 pod on n1")
	wantTable(t, kubectl.must(t, ns, "explain", "pod/"+pods[1].Name), "Pod: "+pods[1].Name+explained+
		digestB+" in 1 pod on n2: differs from the ImagePin")

	var e struct {
		Kind       string
		Containers []struct {
			Pin     struct{ Digest string }
			Running []struct {
				Digest  string
				Differs bool
			}
		}
	}
	if err := json.Unmarshal([]byte(kubectl.must(t, ns, "explain", "deployment/web", "-o", "json")), &e); err != nil {
		t.Fatal(err)
	}
	if e.Kind != "Explanation" || e.Containers[0].Pin.Digest != digestA || e.Containers[0].Running[0].Differs || !e.Containers[0].Running[1].Differs {
		t.Errorf("got %+v", e)
	}
}

func TestExplainRevisions(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"statefulset", "daemonset", "job"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			ns := api.namespace(t)
			n := 2
			switch kind {
			case "statefulset":
				statefulSet(t, ns, "db", image, 2)
			case "daemonset":
				daemonSet(t, ns, "db", image)
			case "job":
				job(t, ns, "db", image)
				n = 1
			}
			pods := run(t, ns, n, digestA)
			pin := api.claim(t, pods[0], image, digestA)
			out := kubectl.must(t, ns, "explain", kind+"/db")
			want := []string{"ImagePin:", pin.Name, "Created:", "by node " + pods[0].Spec.NodeName + " for pod " + pods[0].Name, "Running:", digestA + " in 2 pods on n1, n2\n"}
			if kind == "job" {
				want[5] = digestA + " in 1 pod on n1\n"
			} else {
				want = append(want, "Revision:", ownerOf(pods[0]).Revision)
			}
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("the output does not have %q", w)
				}
			}
		})
	}
}

// Pods without a controller, and images with a digest, have no ImagePins.
func TestExplainUnpinned(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	bare := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: ns}, Spec: template("nginx").Spec}
	bare.Spec.InitContainers = []core.Container{{Name: "init", Image: "nginx@" + digestA}}
	api.must(t, "POST", podPath(ns, ""), bare, bare)
	bind(t, bare, "n1")
	wantTable(t, kubectl.must(t, ns, "explain", "bare"), `
		Pod: bare
		Namespace: `+ns+`
		Owner: <none>

		Init container init
		  Image: nginx@`+digestA+`
		  ImagePin: <none>: the image names a digest
		  Running: <none>

		Container web
		  Image: nginx
		  ImagePin: <none>: the pod has no controller
		  Running: <none>`)
	kubectl.in(t, ns, "explain", "none").wantError(t, `Error from server (NotFound): pods "none" not found`)
	kubectl.in(t, ns, "explain").wantError(t, "is required")
}
