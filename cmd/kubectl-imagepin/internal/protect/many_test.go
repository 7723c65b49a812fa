package protect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// 500 digests cost three requests each, then one.
func TestManyDigests(t *testing.T) {
	h := newHost(t)
	r := newRig(t, "one")
	tagged, protected := make(map[Key]Status), make(map[Key]Status)
	for i := range 500 {
		k := h.push(fmt.Sprintf("shop/app%d", i%50), fmt.Sprintf("v%d", i))
		r.keys = append(r.keys, k)
		tagged[k], protected[k] = Tagged, Protected
	}
	r.protects(tagged)
	h.want("GET digest 500, GET ping 1, HEAD tag 500, PUT tag 500")
	r.protects(protected)
	h.want("GET ping 1, HEAD tag 500")
}

// A registry without an answer is no reason for another one to wait.
func TestSilentRegistry(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	tagged := make(chan struct{})
	h.answers(func(_ http.ResponseWriter, method, _, _ string) bool {
		if method == http.MethodPut {
			close(tagged)
		}
		return false
	})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-tagged:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}))
	defer silent.Close()
	b := Key{strings.TrimPrefix(silent.URL, "http://") + "/shop/web", digestOf("b")}
	c := Key{b.Repository, digestOf("c")}
	newRig(t, "one", a, b, c).protects(map[Key]Status{a: Tagged, b: Failed, c: Failed})
}

// A registry that asks to wait gets each request again.
func TestTooManyRequests(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	asked := make(map[string]bool)
	h.answers(func(w http.ResponseWriter, method, _, reference string) bool {
		if asked[method+reference] {
			return false
		}
		asked[method+reference] = true
		w.Header().Set("Retry-After", "0")
		return refuses(w, http.StatusTooManyRequests, "TOOMANYREQUESTS")
	})
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Tagged})
	h.want("GET digest 2, GET ping 1, HEAD tag 2, PUT tag 2")
}

// A state that cannot be read is an error. Digests are protected, and it is not replaced.
func TestBadState(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	r := newRig(t, "one", a)
	r.store.text = "{"
	report, _, err := r.protectOnce()
	if err == nil || !strings.Contains(err.Error(), "cannot record tags") || report.Count(Tagged) != 1 || r.store.text != "{" {
		t.Errorf("got %+v, %v and state %q", report, err, r.store.text)
	}
}
