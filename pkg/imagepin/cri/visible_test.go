package cri

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// slowUpstream is a CRI service that has an image from a time on, but not by one of its names.
type slowUpstream struct {
	runtime.ImageServiceClient
	id    digest.Digest
	after time.Time
	lacks string
	tags  []string
	names []string
}

func (s *slowUpstream) ImageStatus(_ context.Context, r *runtime.ImageStatusRequest, _ ...grpc.CallOption) (*runtime.ImageStatusResponse, error) {
	if time.Now().Before(s.after) || r.GetImage().GetImage() == s.lacks {
		return &runtime.ImageStatusResponse{}, nil
	}
	s.names = append(s.names, r.GetImage().GetImage())
	return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: s.id.String(), RepoTags: s.tags}}, nil
}

func TestWaitVisible(t *testing.T) {
	id := digest.FromString("image")
	names := []string{id.String(), "registry.example/app:v1"}
	for name, tc := range map[string]struct {
		after  time.Duration
		give   time.Duration
		wanted time.Duration
		lacks  string
		tags   []string
		calls  int
		want   error
	}{
		"immediately":      {0, time.Hour, time.Hour, "", names[1:], 1, nil}, // one answer has both names
		"slow":             {5 * time.Second, time.Hour, time.Hour, "", names[1:], 1, nil},
		"without the tag":  {0, time.Hour, time.Hour, "", nil, 1, nil}, // the answer to the tag has the ID
		"removed":          {time.Minute, time.Hour, time.Second, "", nil, 0, nil},
		"timeout":          {time.Minute, time.Hour, time.Hour, "", nil, 0, errdefs.ErrUnavailable},
		"caller times out": {time.Minute, time.Second, time.Hour, "", nil, 0, context.DeadlineExceeded},
		"delayed name":     {0, time.Hour, time.Hour, names[1], nil, 1, nil}, // the ID
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.give)
				defer cancel()
				upstream := &slowUpstream{id: id, lacks: tc.lacks, tags: tc.tags, after: time.Now().Add(tc.after)}
				end := time.Now().Add(tc.wanted)
				var reminded []string
				remind := func(_ context.Context, name string) error {
					reminded = append(reminded, name)
					return errdefs.ErrNotFound
				}
				err := Visibility{Images: upstream, Remind: remind}.WaitVisible(ctx, id, names, func(string) bool { return time.Now().Before(end) })
				if late := tc.lacks != "" || min(tc.after, tc.give, tc.wanted) > visibleRemind; late != slices.Equal(reminded, names) || !late && len(reminded) > 0 {
					t.Errorf("reminded upstream of %q", reminded)
				}
				if !errors.Is(err, tc.want) {
					t.Fatalf("got %v, want %v", err, tc.want)
				}
				var named *imagepin.Error
				if errors.As(err, &named) != errors.Is(tc.want, errdefs.ErrUnavailable) || named != nil && named.Reason != imagepin.UpstreamNotSynced {
					t.Errorf("got %v, want reason UpstreamNotSynced for %v", err, tc.want)
				}
				if named != nil && status.Code(toStatus(err)) != codes.Unavailable {
					t.Errorf("got status %v, want Unavailable", toStatus(err))
				}
				if len(upstream.names) != tc.calls {
					t.Errorf("upstream returned the image for %q, want %d times", upstream.names, tc.calls)
				}
			})
		})
	}
}
