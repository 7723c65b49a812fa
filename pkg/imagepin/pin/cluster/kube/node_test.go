package kube

import (
	"net/http"
	"reflect"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestNodeName checks which credentials say which node they are for.
func TestNodeName(t *testing.T) {
	bound := func(names ...string) map[string][]string { return map[string][]string{nodeNameKey: names} }
	for _, c := range []struct {
		user user
		node string
		text string
	}{
		{user: user{Username: "system:node:n1"}, node: "n1"},
		{user: user{Username: "system:node:ip-10-0-0-1.eu-west-1.compute.internal"}, node: "ip-10-0-0-1.eu-west-1.compute.internal"},
		{user: user{Username: "system:serviceaccount:kube-system:imagepin", Extra: bound("n2")}, node: "n2"},
		{user: user{Username: "system:serviceaccount:kube-system:imagepin"}, text: `its user "system:serviceaccount:kube-system:imagepin" is a service account, and the token is not bound to a node`},
		{user: user{Username: "system:serviceaccount:kube-system:imagepin", Extra: bound("n2", "n3")}, text: "is not bound to a node"},
		{user: user{Username: "system:serviceaccount:kube-system:imagepin", Extra: bound("")}, text: "is not bound to a node"},
		{user: user{Username: "system:node:"}, text: `its user "system:node:" is not a node`},
		{user: user{Username: "jane", Extra: bound("n1")}, text: `kubeconfig is not that of a node: its user "jane" is not a node`},
		{user: user{Username: "kubernetes-admin"}, text: `its user "kubernetes-admin" is not a node`},
	} {
		t.Run(c.user.Username, func(t *testing.T) {
			a := startServer(t)
			a.user = c.user
			client, _ := a.client()
			pin, _, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			if c.node != "" {
				if err != nil || pin.By.Node != c.node {
					t.Errorf("got %v and %v, want a claim of %s", pin.By, err, c.node)
				}
				return
			}
			wantUnavailable(t, err, c.text)
			// It is known, and concerns claims only.
			a.got()
			wantUnavailable(t, client.call(t.Context(), callClaim), c.text)
			if err := client.call(t.Context(), callFind); err != nil {
				t.Error(err)
			}
			if got := methods(a.got()); len(got) != 1 || got[0][:3] != "GET" {
				t.Errorf("got requests %v, want only one for the pin", got)
			}
		})
	}
}

// TestNodeNameIsAskedOnce checks that the name is kept while the credential is the same, also after a failure.
func TestNodeNameIsAskedOnce(t *testing.T) {
	a := startServer(t)
	c, clock := a.client()
	reviews := func() int {
		n := 0
		for _, m := range methods(a.got()) {
			if m == "POST selfsubjectreviews" {
				n++
			}
		}
		return n
	}
	for range 3 {
		if err := c.call(t.Context(), callClaim); err != nil {
			t.Fatal(err)
		}
	}
	if n := reviews(); n != 1 {
		t.Errorf("%d requests for the user, want 1", n)
	}
	a.answer(func(_ http.ResponseWriter, r *http.Request) { drop(r) })
	wantUnavailable(t, c.call(t.Context(), callClaim), "")
	a.on(nil)
	clock.advance(maxPause)
	if err := c.call(t.Context(), callClaim); err != nil {
		t.Fatal(err)
	}
	if n := reviews(); n != 0 {
		t.Errorf("%d requests for the user after a failure, want 0", n)
	}
	// With another credential, the node may be another.
	a.kubeconfig(c.sessions.config.Kubeconfig, `{"token":"other"}`)
	a.mu.Lock()
	a.user.Username = "system:node:n2"
	a.mu.Unlock()
	pin, _, err := c.Claim(t.Context(), webOwner(), webPod, "registry.example.com/shop/web:v8", digestA)
	if err != nil || pin.By.Node != "n2" {
		t.Errorf("got %+v and %v, want a claim of n2", pin, err)
	}
	if n := reviews(); n != 1 {
		t.Errorf("%d requests for the user of another credential, want 1", n)
	}
}

// TestNodeNameUnavailable checks errors of the request for the user.
func TestNodeNameUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		text   string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, apierrors.NewForbidden(schema.GroupResource{Resource: "selfsubjectreviews"}, "", nil))
		}, "get the user of the credential: the API server"},
		"old API server": {http.NotFound, "get the user of the credential: the API server"},
		"empty":          {func(w http.ResponseWriter, _ *http.Request) { respond(w, 201, map[string]any{}) }, "without a user"},
	} {
		t.Run(name, func(t *testing.T) {
			a := startServer(t)
			client, clock := a.client()
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != reviews.path+"/"+reviews.name {
					return false
				}
				c.answer(w, r)
				return true
			})
			wantUnavailable(t, client.call(t.Context(), callClaim), c.text)
			a.on(nil)
			clock.advance(maxPause)
			a.got()
			if err := client.call(t.Context(), callClaim); err != nil {
				t.Error(err)
			}
			if got := methods(a.got()); !reflect.DeepEqual(got, []string{"POST selfsubjectreviews", "POST imagepins"}) {
				t.Errorf("got requests %v", got)
			}
		})
	}
}
