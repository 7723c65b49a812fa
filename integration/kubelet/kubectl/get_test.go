package kubectl

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

func TestGet(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	r := kubectl.in(t, ns, "get")
	if r.code != 0 || r.out != "" || r.err != "No ImagePins found in "+ns+" namespace.\n" {
		t.Errorf("exit code %d, %q, %q", r.code, r.out, r.err)
	}

	deployment(t, ns, "web", image, 1)
	old := run(t, ns, 1, digestA)[0]
	oldPin := api.claim(t, old, image, digestA)
	newPod := rollOut(t, ns, "web", old, digestB)
	newPin := api.claim(t, newPod, image, digestB)
	rows := map[string]string{
		oldPin.Name: oldPin.Name + " ReplicaSet/" + ownerOf(old).Name + " " + image + " aaaaaaaaaaaa " + old.Spec.NodeName + " *\n",
		newPin.Name: newPin.Name + " ReplicaSet/" + ownerOf(newPod).Name + " " + image + " bbbbbbbbbbbb " + newPod.Spec.NodeName + " *\n",
	}
	all := rows[min(oldPin.Name, newPin.Name)] + rows[max(oldPin.Name, newPin.Name)]
	headers := "NAME OWNER IMAGE DIGEST NODE AGE\n"

	wantTable(t, kubectl.must(t, ns, "get"), headers+all)
	wantTable(t, kubectl.must(t, ns, "get", "deployment/web"), headers+all)
	wantTable(t, kubectl.must(t, ns, "get", "rs/"+ownerOf(old).Name, "--no-headers"), rows[oldPin.Name])
	wantTable(t, kubectl.must(t, ns, "get", "pod/"+newPod.Name, "--no-headers"), rows[newPin.Name])
	wantTable(t, kubectl.must(t, ns, "get", newPin.Name, "imagepins/"+oldPin.Name, "--no-headers"), rows[newPin.Name]+rows[oldPin.Name])
	wantTable(t, kubectl.must(t, ns, "get", oldPin.Name, "-o", "wide"), `
		NAME             OWNER                             IMAGE      DIGEST       NODE                       AGE POD             REVISION
		`+oldPin.Name+`  ReplicaSet/`+ownerOf(old).Name+`  `+image+`  `+digestA+`  `+old.Spec.NodeName+`  *   `+old.Name+`    <none>`)
	if out := kubectl.must(t, ns, "get", "-A", "--no-headers"); !strings.Contains(out, oldPin.Name) || !strings.Contains(out, ns+" ") {
		t.Errorf("got %s", out)
	}
	if out := kubectl.must(t, ns, "get", newPin.Name, "-o", "name"); out != "imagepin.imagepin.io/"+newPin.Name+"\n" {
		t.Errorf("got %q", out)
	}
	r = kubectl.in(t, ns, "get", "deployment/none", newPin.Name, "--no-headers")
	wantTable(t, r.out, rows[newPin.Name])
	if r.code != 1 || r.err != "error: deployment/none: deployments.apps \"none\" not found\n" {
		t.Errorf("exit code %d, %q", r.code, r.err)
	}
	var one v1alpha1.ImagePin
	if err := json.Unmarshal([]byte(kubectl.must(t, ns, "get", newPin.Name, "-o", "json")), &one); err != nil || one.Kind != "ImagePin" || one.Spec.Digest != digestB {
		t.Errorf("got %+v, %v", one, err)
	}
	if out := kubectl.must(t, ns, "get", "-o", "jsonpath={.kind} {.items[*].spec.by.pod}"); !strings.HasPrefix(out, "List ") || !strings.Contains(out, old.Name) {
		t.Errorf("got %q", out)
	}
}

func TestGetErrors(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	kubectl.in(t, ns, "get", "web").wantError(t, `imagepins.imagepin.io "web" not found`, "use KIND/NAME")
	kubectl.in(t, ns, "get", "deployment/web").wantError(t, `Error from server (NotFound): deployments.apps "web" not found`)
	kubectl.in(t, ns, "get", "things/web").wantError(t, `error: the server doesn't have a resource type "things"`)
	kubectl.in(t, ns, "get", "-A", "web").wantError(t, "cannot be retrieved by name across all namespaces")
	kubectl.in(t, ns, "get", "-o", "xml").wantError(t, `output format "xml"`, "wide")
	kubectl.in(t, ns, "get", "--as=nobody").wantError(t, "Error from server (Forbidden)", "imagepins")
}
