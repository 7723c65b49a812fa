package kube

import (
	"net/http"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestImagesOf reads the images of containers of all kinds and of image volumes, in one request that the cache does not answer.
func TestImagesOf(t *testing.T) {
	a := startServer(t)
	pod := a.addPod("web-1", "uid-1", func(*metav1.PartialObjectMetadata) {})
	c, _ := a.client()
	spec := `"spec":{"initContainers":[{"image":"init:1","imagePullPolicy":"Always"}],"containers":[{"image":"app:1","imagePullPolicy":"IfNotPresent"}],
		"ephemeralContainers":[{"image":"debug:1","imagePullPolicy":"Never"}],
		"volumes":[{"name":"a","emptyDir":{}},{"name":"b","image":{"reference":"data:1","pullPolicy":"Never"}}]}`
	uid, cached := "uid-1", true
	a.answer(func(w http.ResponseWriter, r *http.Request) {
		cached = r.URL.Query().Has("resourceVersion")
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1","namespace":"` + pod.Namespace + `","uid":"` + uid + `"},` + spec + `}`))
	})
	before := len(a.got())
	images, err := c.ImagesOf(t.Context(), pod)
	want := []PodImage{{"init:1", "Always"}, {"app:1", "IfNotPresent"}, {"debug:1", "Never"}, {"data:1", "Never"}}
	if err != nil || !slices.Equal(images, want) {
		t.Errorf("got %v, %v, want %v", images, err, want)
	}
	if n := len(a.got()) - before; n != 1 || cached {
		t.Errorf("got %d requests, cached %t, want one that the cache does not answer", n, cached)
	}
	uid = "uid-2"
	if _, err := c.ImagesOf(t.Context(), pod); !errdefs.IsNotFound(err) {
		t.Errorf("a pod with this name that was created later: got %v, want ErrNotFound", err)
	}
	if _, err := c.ImagesOf(t.Context(), Pod{Namespace: "team", Name: "../x", UID: "1"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v, want ErrInvalidArgument", err)
	}
	a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if _, err := c.ImagesOf(t.Context(), pod); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
