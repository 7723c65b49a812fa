package resolve

import (
	"net/http"
	"slices"
	"testing"
)

// TestResolveWithoutHead checks that a tag is resolved with GET by a registry whose answers to HEAD are of no use.
func TestResolveWithoutHead(t *testing.T) {
	const path = " /v2/team/app/manifests/1"
	for name, answer := range map[string]func(http.ResponseWriter){
		"405":              func(w http.ResponseWriter) { w.WriteHeader(http.StatusMethodNotAllowed) },
		"without a digest": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "10") },
		"without a size":   func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"without a header": func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"of use":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			r.answer = func(w http.ResponseWriter, req *http.Request) bool {
				if req.Method != http.MethodHead || answer == nil {
					return false
				}
				answer(w)
				return true
			}
			got, err := newResolver(t, server(r)).Resolve(quiet(t), named(t, ref), Credential{})
			want := []string{"HEAD" + path, "GET" + path}
			if answer == nil {
				want = want[:1]
			}
			if seen := r.seen(); err != nil || got.Root.Digest != r.root.Digest || got.Root.MediaType != r.root.MediaType || !slices.Equal(seen, want) {
				t.Errorf("resolved to %+v, %v with %v, want %v", got.Root, err, seen, want)
			}
		})
	}
}
