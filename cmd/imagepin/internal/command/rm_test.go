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

// remover removes all images and pins except some.
type remover struct {
	api.UnimplementedControlServer
	fails map[string]codes.Code
	calls []string
}

func (r *remover) RemoveImage(_ context.Context, q *api.RemoveImageRequest) (*api.RemoveImageResponse, error) {
	if err := r.call(q.GetRef()); err != nil {
		return nil, err
	}
	return &api.RemoveImageResponse{Removed: []*api.Key{{Ref: q.GetRef(), Target: appKey().GetTarget()}}}, nil
}

func (r *remover) RemovePin(_ context.Context, q *api.RemovePinRequest) (*api.RemovePinResponse, error) {
	if err := r.call(q.GetRef()); err != nil {
		return nil, err
	}
	return &api.RemovePinResponse{Pin: &api.Pin{Ref: q.GetRef(), Scope: q.GetScope(), Root: &api.Descriptor{Digest: digestOld}}}, nil
}

func (r *remover) call(ref string) error {
	r.calls = append(r.calls, ref)
	if code, fails := r.fails[ref]; fails {
		return status.Error(code, ref+": cannot be removed")
	}
	return nil
}

// TestRemoveSeveral checks that rm and pin rm remove what they can remove, and then fail.
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
		for command, line := range map[string]func(ref string) string{
			"rm": func(ref string) string { return "Removed " + ref + " for linux/amd64 on overlayfs\n" },
			"pin rm --scope " + workload: func(ref string) string {
				return "Unpinned " + ref + " (scope " + workload + ", was " + digestOld + ")\n"
			},
		} {
			t.Run(name+"/"+command, func(t *testing.T) {
				r := &remover{fails: c.fails}
				_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, r) })
				got := runAt(t, address, nil, append(strings.Fields(command), "a", "b", "c")...)
				if code := min(len(c.err), 1); got.code != code || strings.Join(r.calls, " ") != c.calls {
					t.Errorf("exit code %d, want %d, removed %q", got.code, code, r.calls)
				}
				var out strings.Builder
				for _, ref := range c.out {
					out.WriteString(line(ref))
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
}
