package cri

import (
	"context"
	"testing"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// noImages is a store without images.
type noImages struct{ Store }

func (noImages) ByID(digest.Digest) []imagepin.Entry { return nil }

// TestCreateAgainAfterNotFound creates a container while another tool removes the record that upstream reads, and creates
// it again before the names are compared. The container is created again once. Other errors are returned at once.
func TestCreateAgainAfterNotFound(t *testing.T) {
	for _, test := range []struct {
		answers []codes.Code
		calls   int
		want    codes.Code
	}{
		{[]codes.Code{codes.OK}, 1, codes.OK},
		{[]codes.Code{codes.NotFound, codes.OK}, 2, codes.OK},
		{[]codes.Code{codes.NotFound, codes.NotFound}, 2, codes.NotFound},
		{[]codes.Code{codes.NotFound, codes.Unavailable}, 2, codes.Unavailable},
		{[]codes.Code{codes.Unavailable}, 1, codes.Unavailable},
	} {
		s := &containers{&base{Config: Config{Store: noImages{}}}}
		calls := 0
		_, err := s.createFromImages(t.Context(), &runtime.CreateContainerRequest{}, runtimeplatform.Target{},
			func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
				calls++
				return &runtime.CreateContainerResponse{ContainerId: "c"}, status.Error(test.answers[calls-1], "")
			})
		if calls != test.calls || status.Code(err) != test.want {
			t.Errorf("upstream answers %v: got %v after %d calls, want %s after %d", test.answers, err, calls, test.want, test.calls)
		}
	}
}
