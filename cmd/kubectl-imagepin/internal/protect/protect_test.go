package protect

import (
	"net/http"
	"strings"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
)

// refuses answers a request with a status of the specification.
func refuses(w http.ResponseWriter, status int, code string) bool {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"errors":[{"code":"` + code + `","message":"it is refused"}]}`))
	return true
}

// A digest that loses its tag keeps that of the run, which sends a request for each digest the next time.
func TestProtect(t *testing.T) {
	h := newHost(t)
	a, b := h.push("shop/web", "v7"), h.push("shop/api", "v7")
	h.push("shop/web", "v7") // the tag moves
	r := newRig(t, "one", a, b)
	r.protects(map[Key]Status{a: Tagged, b: Tagged})
	h.want("GET digest 2, GET ping 1, HEAD tag 2, PUT tag 2")
	r.protects(map[Key]Status{a: Protected, b: Protected})
	h.want("GET ping 1, HEAD tag 2")
	if !h.has("shop/web", r.Cluster.Tag(a.Digest)) {
		t.Errorf("got tags %v", h.tags("shop/web"))
	}
	// A tag that somebody has moved means the digest again.
	h.push("shop/web", r.Cluster.Tag(a.Digest))
	r.protects(map[Key]Status{a: Tagged, b: Protected})
	r.protects(map[Key]Status{a: Protected, b: Protected})
}

func TestDryRun(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	gone := Key{a.Repository, digestOf("b")}
	r := newRig(t, "one", a, gone)
	r.DryRun = true
	r.protects(map[Key]Status{a: Tagged, gone: Gone})
	// HEAD has no error, which is that of the digest.
	h.want("GET ping 1, HEAD digest 2, HEAD tag 2")
	if len(h.tags("shop/web")) != 1 || r.store.text != "" {
		t.Errorf("got tags %v and state %s", h.tags("shop/web"), r.store.text)
	}
	r.wants(r.run(r.List), map[Key]Status{a: Needed, gone: Needed})
	h.want("")
}

// digestOf returns a digest with one digit.
func digestOf(digit string) digest.Digest {
	return digest.Digest("sha256:" + strings.Repeat(digit, 64))
}

func TestCheck(t *testing.T) {
	h := newHost(t)
	moved := h.push("shop/web", "v7")
	tagged := h.push("shop/web", "v7")
	protected := h.push("shop/api", "v7")
	gone := Key{tagged.Repository, digestOf("b")}
	r := newRig(t, "one", protected)
	r.protects(map[Key]Status{protected: Tagged})
	h.want("GET digest 1, GET ping 1, HEAD tag 1, PUT tag 1")
	r.keys = []Key{moved, tagged, protected, gone}
	r.checks(map[Key]Status{moved: Untagged, tagged: OtherTag, protected: Protected, gone: Gone})
	h.want("GET ping 1, HEAD digest 3, HEAD tag 6")
	if len(h.tags("shop/web")) != 1 {
		t.Errorf("got tags %v", h.tags("shop/web"))
	}
}

// Registries that refuse tags are named, once for each repository, and do not keep others waiting.
func TestRefused(t *testing.T) {
	for status, code := range map[int]string{401: "UNAUTHORIZED", 403: "DENIED", 405: "UNSUPPORTED", 400: "TAG_INVALID", 409: "CONFLICT", 412: "IMMUTABLE", 404: "NAME_UNKNOWN"} {
		h, other := newHost(t), newHost(t)
		a, b := h.push("shop/web", "v7"), h.push("shop/web", "v8")
		c := other.push("shop/web", "v7")
		h.answers(func(w http.ResponseWriter, method, _, _ string) bool {
			return method == http.MethodPut && refuses(w, status, code)
		})
		r := newRig(t, "one", a, b, c)
		r.protects(map[Key]Status{a: Refused, b: Refused, c: Tagged})
		if status != 401 { // with a 401, the client authenticates and tries again
			h.want("GET digest 1, GET ping 1, HEAD tag 1, PUT tag 1")
		}
	}
}

// A registry with a failure is not one that refuses.
func TestFailed(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	h.answers(func(w http.ResponseWriter, method, _, _ string) bool {
		return method == http.MethodPut && refuses(w, 500, "UNKNOWN")
	})
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Failed})
	closed := newHost(t)
	b := closed.push("shop/web", "v7")
	closed.server.Close()
	h.answers(nil)
	r.keys = append(r.keys, b, Key{b.Repository + "/" + strings.Repeat("x", 256), b.Digest})
	got := r.run(r.Check)
	if got[short(b.Digest)] != Failed || got[short(a.Digest)] != OtherTag {
		t.Errorf("got %v", got)
	}
}

// A registry with other content than the digest is not believed.
func TestWrongContent(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	h.answers(func(w http.ResponseWriter, method, _, reference string) bool {
		if method != http.MethodGet || reference != a.Digest.String() {
			return false
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
		_, _ = w.Write([]byte("{}"))
		return true
	})
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Failed})
	h.want("GET digest 1, GET ping 1, HEAD tag 1")
}

// Two clusters share a repository.
func TestTwoClusters(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	one, two := newRig(t, "one", a), newRig(t, "two", a)
	one.protects(map[Key]Status{a: Tagged})
	two.protects(map[Key]Status{a: Tagged})
	one.keys, one.Grace = nil, 0
	one.protects(map[Key]Status{a: Removed})
	if h.has("shop/web", one.Cluster.Tag(a.Digest)) || !h.has("shop/web", two.Cluster.Tag(a.Digest)) {
		t.Errorf("got tags %v", h.tags("shop/web"))
	}
	two.protects(map[Key]Status{a: Protected})
}

// Digests of one repository whose tags are the same cannot both have it.
func TestConflict(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	b := Key{a.Repository, a.Digest[:70] + "0"}
	if b.Digest == a.Digest {
		b.Digest = a.Digest[:70] + "1"
	}
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Tagged})
	r.keys = []Key{a, b}
	report, _, err := r.protectOnce()
	if err != nil {
		t.Fatal(err)
	}
	if report.Count(Protected) != 1 || report.Count(Conflict) != 1 {
		t.Errorf("got %+v", report.Items)
	}
}

// A tag goes when the grace time has passed since a run has found that nothing needs its digest.
func TestGrace(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Tagged})
	r.keys = nil
	r.now = r.now.Add(24 * time.Hour) // it was needed until now
	r.protects(map[Key]Status{})
	r.now = r.now.Add(59 * time.Minute)
	r.protects(map[Key]Status{})
	// It is needed again, so the grace time starts over.
	r.keys = []Key{a}
	r.protects(map[Key]Status{a: Protected})
	r.keys = nil
	r.protects(map[Key]Status{})
	r.now = r.now.Add(59 * time.Minute)
	r.protects(map[Key]Status{})
	// A clock that was wrong makes it longer.
	r.now = r.now.Add(-24 * time.Hour)
	r.protects(map[Key]Status{})
	r.now = r.now.Add(time.Hour - time.Second)
	r.protects(map[Key]Status{})
	h.requests = map[string]int{}
	r.now = r.now.Add(time.Second)
	r.DryRun = true
	r.protects(map[Key]Status{a: Removed})
	h.want("")
	r.DryRun = false
	r.protects(map[Key]Status{a: Removed})
	if h.has("shop/web", r.Cluster.Tag(a.Digest)) || !h.has("shop/web", "v7") || !h.has("shop/web", a.Digest.String()) {
		t.Errorf("got tags %v", h.tags("shop/web"))
	}
	r.protects(map[Key]Status{})
	if r.store.text != "{}" {
		t.Errorf("got state %s", r.store.text)
	}
}
