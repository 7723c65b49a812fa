package kubectl

import (
	"encoding/json"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
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
		  Tag now: <unknown>: Bad Gateway
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

// A tag that moves after the ImagePin is created is shown with its new digest. A tag that cannot be resolved is shown with
// the reason, and is no error.
func TestExplainTag(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	repository := "registry.example.com/" + tag(t)
	before := images.push(t, tag(t))
	deployment(t, ns, "web", repository, 1)
	pod := run(t, ns, 1, before)[0]
	pin := api.claim(t, pod, repository, before)
	explain := func(tagNow string, args ...string) {
		t.Helper()
		if tagNow != "" {
			tagNow = "Tag now: " + tagNow + "\n"
		}
		r := kubectl.in(t, ns, append([]string{"explain", "deployment/web"}, args...)...)
		if r.code != 0 || r.err != "" {
			t.Errorf("exit code %d, %q", r.code, r.err)
		}
		wantTable(t, r.out, `
			Deployment: web
			Namespace: `+ns+`
			Owner: ReplicaSet/`+ownerOf(pod).Name+`

			Container web
			Image: `+repository+`
			ImagePin: `+pin.Name+`
			Digest: `+before+`
			Created: * ago by node n1 for pod `+pod.Name+`
			`+tagNow+`Running: `+before+` in 1 pod on n1`)
	}
	tagJSON := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"explain", pod.Name, "-o", "jsonpath={.containers[0].tag}"}, args...)
		if out := kubectl.must(t, ns, args...); out != want {
			t.Errorf("got %s, want %s", out, want)
		}
	}
	explain("same digest", "--insecure-registry")
	tagJSON(`{"differs":false,"digest":"`+before+`"}`, "--insecure-registry")

	after := images.push(t, tag(t))
	explain(after+": differs from the ImagePin", "--insecure-registry")
	tagJSON(`{"differs":true,"digest":"`+after+`"}`, "--insecure-registry")

	explain("<unknown>: Bad Gateway")
	tagJSON(`{"error":"Bad Gateway"}`)
	explain("", "--resolve=false")
	tagJSON("", "--resolve=false")
}

// A registry that does not answer ends the lookups of its tags after 5 seconds, and does not delay those of others.
func TestExplainSilentRegistry(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	first, second, answered := silentHost+"/shop/web:v7", silentHost+"/shop/web:v8", "registry.example.com/"+tag(t)
	digest := images.push(t, tag(t))
	pods := template(first)
	pods.Spec.Containers = append(pods.Spec.Containers, core.Container{Name: "second", Image: second}, core.Container{Name: "answered", Image: answered})
	api.must(t, "POST", appsPath(ns, "deployments", ""), &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: apps.DeploymentSpec{Selector: selector, Template: pods},
	}, nil)
	pod := run(t, ns, 1, digest)[0]
	for _, image := range []string{first, second, answered} {
		api.claim(t, pod, image, digest)
	}
	out := kubectl.must(t, ns, "explain", "deployment/web", "--insecure-registry")
	if n := strings.Count(out, "<unknown>: no answer within 5s\n"); n != 2 || !strings.Contains(out, "same digest\n") {
		t.Errorf("got %d tags without an answer, want two, and one with", n)
	}
}
