package command

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// remover removes all images except some.
type remover struct {
	api.UnimplementedControlServer
	fails map[string]codes.Code
	calls []string
}

func (r *remover) RemoveImage(_ context.Context, q *api.RemoveImageRequest) (*api.RemoveImageResponse, error) {
	r.calls = append(r.calls, q.GetRef())
	if code, fails := r.fails[q.GetRef()]; fails {
		return nil, status.Error(code, q.GetRef()+": cannot be removed")
	}
	return &api.RemoveImageResponse{Removed: []*api.Key{{Ref: q.GetRef(), Target: appKey().GetTarget()}}}, nil
}

// TestRemoveSeveral checks that rm removes the images that it can remove, and then fails.
func TestRemoveSeveral(t *testing.T) {
	for name, c := range map[string]struct {
		fails    map[string]codes.Code
		calls    string
		out, err []string
	}{
		"all":         {nil, "a b c", []string{"a", "b", "c"}, nil},
		"one fails":   {map[string]codes.Code{"b": codes.FailedPrecondition}, "a b c", []string{"a", "c"}, []string{"b"}},
		"all fail":    {map[string]codes.Code{"a": codes.NotFound, "b": codes.NotFound, "c": codes.NotFound}, "a b c", nil, []string{"a", "b", "c"}},
		"unreachable": {map[string]codes.Code{"b": codes.Unavailable}, "a b", []string{"a"}, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &remover{fails: c.fails}
			_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, r) })
			got := runAt(t, address, nil, "rm", "a", "b", "c")
			if code := min(len(c.err), 1); got.code != code || strings.Join(r.calls, " ") != c.calls {
				t.Errorf("exit code %d, want %d, removed %q", got.code, code, r.calls)
			}
			var out strings.Builder
			for _, ref := range c.out {
				out.WriteString("Removed " + ref + " for linux/amd64 on overlayfs\n")
			}
			if got.out != out.String() {
				t.Errorf("printed %q, want %q", got.out, out.String())
			}
			for _, ref := range c.err {
				if !strings.Contains(got.err, ref+": cannot be removed\n") {
					t.Errorf("printed %q, want an error of %s", got.err, ref)
				}
			}
		})
	}
}
