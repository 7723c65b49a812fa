package kubectl

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Neither the errors of a registry nor the fields of objects control the terminal.
func TestEscapeSequences(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "red"}, Spec: template("web\x1b[31m").Spec}
	api.must(t, "POST", podPath(ns, ""), pod, nil)
	image := hostileHost + "/shop/web:v7"
	deployment(t, ns, "web", image, 1)
	web := await(t, ns, 2)
	owned := web[1]
	if owned.Name == "red" {
		owned = web[0]
	}
	api.claim(t, owned, image, digestA)

	out := kubectl.must(t, ns, "explain", "red")
	r := kubectl.in(t, ns, "refresh", "deployment/web", "--insecure-registry")
	r.wantError(t, "cannot resolve "+image, "DENIED", "^[[2J")
	tag := kubectl.must(t, ns, "explain", "deployment/web", "--insecure-registry")
	if !strings.Contains(tag, "<unknown>: DENIED: ^[[2Jxxx") || len(tag) > 1000 {
		t.Errorf("got %d characters, want the start of the registry's message", len(tag))
	}
	if strings.Contains(out+r.err+tag, "\x1b") {
		t.Error("the output has an escape character")
	}
	if len(r.err) > 1000 {
		t.Errorf("the error has %d characters", len(r.err))
	}
}
