package sim

import (
	"fmt"
	"slices"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The pods of the user and of the tenant are in different namespaces.
const (
	userNamespace   = "blue"
	tenantNamespace = "green"
	userRef         = privateApp + ":1"
)

// privatePull returns the request of kubelet to pull a private image with the credential of somebody, or without one.
func privatePull(who, namespace, ref string) *runtime.PullImageRequest {
	r := &runtime.PullImageRequest{
		Image: &runtime.ImageSpec{Image: ref, UserSpecifiedImage: ref, RuntimeHandler: "runc"},
		SandboxConfig: &runtime.PodSandboxConfig{
			Metadata: &runtime.PodSandboxMetadata{Name: "private", Uid: "uid-" + namespace, Namespace: namespace},
			Labels:   map[string]string{"pod-template-hash": "r1"},
		},
	}
	if who != "" {
		r.Auth = &runtime.AuthConfig{Username: who, Password: "secret"}
	}
	return r
}

func (k *caller) privatePull(who, namespace, ref string) {
	r := privatePull(who, namespace, ref)
	o := &op{ref: ref, handler: "runc", scope: k.w.scope(r.GetSandboxConfig()), denied: who == ""}
	_, _ = checkedCall[*runtime.PullImageResponse](k, "ImageService", "PullImage", o, r)
}

// userStarts pulls the private image of a user.
func (k *caller) userStarts() { k.privatePull("user", userNamespace, userRef) }

// manyNames pulls the private image of the user under many names and credentials: in some histories more than a record has
// proofs.
func (k *caller) manyNames() {
	pulls := 20
	if k.rng.IntN(4) == 0 {
		pulls = 80
	}
	for i := range pulls {
		ref := fmt.Sprintf("%s:%d", privateApp, 1+i%3)
		if i%8 == 7 {
			ref = fmt.Sprintf("%s/tenant/%d:1", privateHost, i/8%privateNames)
		}
		k.privatePull(fmt.Sprintf("tenant-%d", i), tenantNamespace, ref)
		if k.ctx.Err() != nil {
			return
		}
	}
	k.privatePull("", tenantNamespace, userRef)
}

// startOffline checks, while no registry can be reached, that the user still gets the image, and that nobody else does.
func (k *caller) startOffline() {
	w := k.w
	k.privatePull("", tenantNamespace, userRef)
	w.facts.mu.Lock()
	i := slices.IndexFunc(w.facts.ops, func(o *op) bool { return o.ref == userRef && !o.denied && o.err == nil && o.ended })
	var first *op
	if i >= 0 {
		first = w.facts.ops[i]
	}
	w.facts.mu.Unlock()
	if first == nil || !strings.HasPrefix(first.actor, "user-starts") || w.choice.behavior == "always" || w.facts.removed(first.id, first.start) {
		return
	}
	resp, err := call[*runtime.PullImageResponse](k.ctx, w.proc, "ImageService", "PullImage", privatePull("user", userNamespace, userRef))
	k.step("got offline: %s", outcome(resp, err))
	if err != nil && !w.expected(err.Error()) {
		w.wrong(startOnline, "PullImage of %s without a registry: %v", userRef, err)
	}
}
