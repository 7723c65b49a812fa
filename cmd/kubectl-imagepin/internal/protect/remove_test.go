package protect

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	digest "github.com/opencontainers/go-digest"
)

// unneeded returns a rig with a tag whose digest nothing needs and that another tag of the repository means too.
func unneeded(t *testing.T, h *host) (*rig, Key) {
	t.Helper()
	a := h.push("shop/web", "v7")
	r := newRig(t, "one", a)
	r.protects(map[Key]Status{a: Tagged})
	h.want("GET digest 1, GET ping 1, HEAD tag 1, PUT tag 1")
	r.keys, r.Grace = nil, 0
	return r, a
}

// One image without layers shows what the registry does, then each tag costs two requests.
func TestRemoveRequests(t *testing.T) {
	h := newHost(t)
	keys := []Key{h.push("shop/web", "v7"), h.push("shop/web", "v8"), h.push("shop/api", "v7")}
	r := newRig(t, "one", keys...)
	tagged, removed := make(map[Key]Status), make(map[Key]Status)
	for _, k := range keys {
		tagged[k], removed[k] = Tagged, Removed
	}
	r.protects(tagged)
	r.keys, r.Grace = nil, 0
	h.want("GET digest 3, GET ping 1, HEAD tag 3, PUT tag 3")
	r.protects(removed)
	// DELETE: the tag of the image without layers before and after it is pushed, and three tags. HEAD: the tag, twice, and the digest of the
	// image without layers, and three tags. The others push its configuration: HEAD, POST, PATCH and PUT.
	h.want("DELETE tag 5, GET ping 1, HEAD digest 1, HEAD other 1, HEAD tag 5, PATCH other 1, POST other 1, PUT other 1, PUT tag 1")
	if got := strings.Join(h.tags("shop/web"), " "); got != "v7 v8" {
		t.Errorf("got tags %s", got)
	}
}

const errText = "the registry deletes a manifest with its tag"

// A registry that deletes a manifest, or all its tags, by a tag keeps the tag. Nothing else is lost.
func TestDeletesManifestWithTag(t *testing.T) {
	h := newHost(t)
	r, a := unneeded(t, h)
	h.answers(func(w http.ResponseWriter, method, repository, reference string) bool {
		if method != http.MethodDelete || !h.has(repository, reference) {
			return false
		}
		d := h.digest(repository, reference)
		for _, tag := range h.tags(repository) {
			if h.digest(repository, tag) == d {
				h.do("DELETE", repository+"/manifests/"+tag, nil)
			}
		}
		h.do("DELETE", repository+"/manifests/"+d, nil)
		w.WriteHeader(http.StatusAccepted)
		return true
	})
	r.protects(map[Key]Status{a: Kept})
	if got := r.last.Items[0].Reason; got != errText {
		t.Errorf("got reason %q, want %q", got, errText)
	}
	for _, reference := range []string{"v7", a.Digest.String(), r.Cluster.Tag(a.Digest)} {
		if !h.has("shop/web", reference) {
			t.Errorf("the registry does not have %s", reference)
		}
	}
	if h.has("shop/web", r.Cluster.probe()) {
		t.Error("the tag of the image without layers is left")
	}
}

// digest returns the digest of a reference in a repository.
func (h *host) digest(repository, reference string) string {
	rec := httptest.NewRecorder()
	h.content.ServeHTTP(rec, httptest.NewRequest("HEAD", "/v2/"+repository+"/manifests/"+reference, nil))
	return rec.Header().Get("Docker-Content-Digest")
}

// A registry that cannot delete tags keeps them.
func TestCannotDeleteTags(t *testing.T) {
	for _, tc := range []struct {
		status   int
		requests string
	}{
		{http.StatusMethodNotAllowed, "DELETE tag 1, GET ping 1"},
		{http.StatusBadRequest, "DELETE tag 1, GET ping 1"},
		{http.StatusForbidden, "DELETE tag 1, GET ping 1"},
		// These report a tag that they do not have, or that it was deleted, and it stays.
		{http.StatusNotFound, "DELETE tag 2, GET ping 1, HEAD other 1, HEAD tag 2, PATCH other 1, POST other 1, PUT other 1, PUT tag 1"},
		{http.StatusAccepted, "DELETE tag 2, GET ping 1, HEAD other 1, HEAD tag 2, PATCH other 1, POST other 1, PUT other 1, PUT tag 1"},
	} {
		h := newHost(t)
		r, a := unneeded(t, h)
		h.answers(func(w http.ResponseWriter, method, _, _ string) bool {
			return method == http.MethodDelete && refuses(w, tc.status, "UNSUPPORTED")
		})
		r.protects(map[Key]Status{a: Kept})
		h.want(tc.requests)
		if !h.has("shop/web", r.Cluster.Tag(a.Digest)) {
			t.Errorf("%d: the tag is gone", tc.status)
		}
	}
}

// A tag that means another digest is not that of the run.
func TestTagWasMoved(t *testing.T) {
	h := newHost(t)
	r, a := unneeded(t, h)
	h.push("shop/web", r.Cluster.Tag(a.Digest))
	r.protects(map[Key]Status{a: Kept})
	if !h.has("shop/web", r.Cluster.Tag(a.Digest)) {
		t.Error("the tag is gone")
	}
}

// What is needed again before tags are deleted keeps its tag.
func TestNeededBeforeRemoval(t *testing.T) {
	h := newHost(t)
	r, a := unneeded(t, h)
	r.beforeRead = func(n int) {
		if n == 2 {
			r.keys = []Key{a}
		}
	}
	r.protects(map[Key]Status{})
	h.want("")
	r.protects(map[Key]Status{a: Protected})
}

// What is needed again while tags are deleted gets its tag back.
func TestNeededDuringRemoval(t *testing.T) {
	h := newHost(t)
	r, a := unneeded(t, h)
	r.beforeRead = func(n int) {
		if n == 3 {
			if h.has("shop/web", r.Cluster.Tag(a.Digest)) {
				t.Error("the tag was not deleted")
			}
			r.keys = []Key{a}
		}
	}
	r.protects(map[Key]Status{a: Tagged})
	if !h.has("shop/web", r.Cluster.Tag(a.Digest)) {
		t.Error("the tag is gone")
	}
	r.keys, r.beforeRead = nil, nil
	r.protects(map[Key]Status{a: Removed}) // it is still recorded
}

// Tags are recorded before they are set, so a run that is killed leaves none that is not recorded.
func TestRecordedBefore(t *testing.T) {
	h := newHost(t)
	a := h.push("shop/web", "v7")
	r := newRig(t, "one", a)
	recorded := false
	h.answers(func(_ http.ResponseWriter, method, _, _ string) bool {
		if method == http.MethodPut {
			recorded = strings.Contains(r.store.text, short(a.Digest))
		}
		return false
	})
	r.protects(map[Key]Status{a: Tagged})
	if !recorded {
		t.Error("the tag was set before it was recorded")
	}
}

// The tags of repositories that are not selected do not change.
func TestSelected(t *testing.T) {
	h := newHost(t)
	a, b := h.push("shop/web", "v7"), h.push("other/web", "v7")
	r := newRig(t, "one", a, b)
	r.Selected = func(repository string) bool { return strings.Contains(repository, "/shop/") }
	r.protects(map[Key]Status{a: Tagged})
	h.want("GET digest 1, GET ping 1, HEAD tag 1, PUT tag 1")
	r.Selected = func(string) bool { return true }
	r.protects(map[Key]Status{a: Protected, b: Tagged})
	r.keys, r.Grace = nil, 0
	r.Selected = func(repository string) bool { return strings.Contains(repository, "/shop/") }
	r.protects(map[Key]Status{a: Removed})
	if !h.has("other/web", r.Cluster.Tag(b.Digest)) {
		t.Error("the tag of another repository is gone")
	}
}

func TestNeeds(t *testing.T) {
	const d, e = digest.Digest("sha256:" + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), digest.Digest("sha256:" + "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	n := &Needs{}
	n.AddPod(pod("tag", "web:v7", "docker.io/library/web@"+d.String()))
	n.AddPod(pod("other", "web:v8", "docker.io/library/web@"+d.String()))
	n.AddPod(pod("mirrored", "mirror.example.com/web:v7", "docker.io/library/web@"+d.String()))
	n.AddPod(pod("both", "shop/web@"+e.String(), "docker.io/shop/web@"+d.String()))
	n.AddPod(pod("imported", "local:v1", d.String()))
	n.AddPod(pod("pulling", "web:v7", ""))
	n.AddPod(pod("bad", strings.Repeat("x", 2000), "docker.io/library/web@"+d.String()))
	n.AddPod(pod("hostile", "web:v7", strings.Repeat("x", 2000)+"@"+d.String()))
	got, unknown := n.List(), n.Unknown(func(repository string) bool { return repository == "docker.io/library/local" })
	if len(got) != 3 || unknown != 1 || len(n.Invalid) != 2 {
		t.Fatalf("got %+v, %d, %v", got, unknown, n.Invalid)
	}
	if web := got[0]; web.Repository != "docker.io/library/web" || strings.Join(web.Tags, " ") != "v7 v8" || len(web.Users) != 3 {
		t.Errorf("got %+v", web)
	}
	if got[1].Repository != "docker.io/shop/web" || got[1].Digest != d || got[2].Digest != e {
		t.Errorf("got %+v", got[1:])
	}
	for _, err := range n.Invalid {
		if len(err.Error()) > 600 {
			t.Errorf("got an error of %d bytes", len(err.Error()))
		}
	}
}

func TestState(t *testing.T) {
	for _, text := range []string{"[]", `{"r":{"a":"yesterday"}}`, "x"} {
		if _, err := ParseState(text); err == nil || len(err.Error()) > 500 {
			t.Errorf("%s: got %v, want an error", text, err)
		}
	}
	const text = `{"a/b":{"aaaaaaaaaaaa":"","bbbbbbbbbbbb":"2026-11-28T12:00:00Z"},"c":{"cccccccccccc":""}}`
	s, err := ParseState(text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Text(); err != nil || got != text {
		t.Errorf("got %s, %v", got, err)
	}
	for i := range 40000 {
		s.set("r", strings.Repeat("x", 10)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)), s.tags["a/b"]["aaaaaaaaaaaa"])
	}
	for i := range 200 {
		s.set(strings.Repeat("r", 5000)+string(rune('a'+i)), "x", s.tags["a/b"]["aaaaaaaaaaaa"])
	}
	if _, err := s.Text(); err == nil || !strings.Contains(err.Error(), "there is place for") {
		t.Errorf("got %v, want that it is too large", err)
	}
}

func TestTag(t *testing.T) {
	a, b := ClusterOf("64c2f6a2-0d2a-4c5e-9e4e-2f1f6e0a9b11"), ClusterOf("64c2f6a2-0d2a-4c5e-9e4e-2f1f6e0a9b12")
	// Releases have the same tags.
	if want := "imagepin-1997e17e-aaaaaaaaaaaa"; a.Tag(digestOf("a")) != want {
		t.Errorf("got %s, want %s", a.Tag(digestOf("a")), want)
	}
	if a == b {
		t.Error("two clusters are one")
	}
}
