package cri

import (
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// An image that goes while ImageStatus is about to answer is not present; and what is answered is whole.
func TestImageStatusBesideRemoval(t *testing.T) {
	s := serviceOf(t, 1)
	ref := listedRef(0)
	entries := s.Store.ByID(s.Store.Find(ref)[0].ImageID)
	var keys []imagepin.Key
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	ctx := namespaces.WithNamespace(t.Context(), ctdtest.Namespace)
	done := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			r := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: ref}}
			for {
				select {
				case <-done:
					return
				default:
				}
				resp, err := s.imageStatus(ctx, r, nil)
				if err != nil || (resp.GetImage() != nil && len(resp.GetImage().GetRepoTags())+len(resp.GetImage().GetRepoDigests()) == 0) {
					t.Errorf("%v, %v", resp, err)
					return
				}
			}
		})
	}
	for range 40 {
		if _, err := s.Store.Remove(ctx, keys...); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Store.Put(ctx, "", entries...); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	asking.Wait()
}
