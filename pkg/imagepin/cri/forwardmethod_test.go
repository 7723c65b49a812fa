package cri

import (
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestForward checks that Forward forwards the calls of every method, and errors.
func TestForward(t *testing.T) {
	b := &backend{messages: 3}
	upstream := dial(t, grpc.NewServer(grpc.UnknownServiceHandler(b.handle)))
	conn := dial(t, grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return Forward(upstream, stream) })))
	for _, m := range methods(t) {
		text := string(m.Name())
		want := []string{text + " 0"}
		if m.IsStreamingServer() {
			want = append(want, text+" 1", text+" 2")
		}
		if answers, _, _, err := call(t.Context(), conn, m, text); err != nil || !slices.Equal(answers, want) {
			t.Errorf("%s: got answers %v, %v, want %v", m.FullName(), answers, err, want)
		}
	}
	failed, err := status.New(codes.ResourceExhausted, "no room").WithDetails(&errdetails.ErrorInfo{Reason: "R", Domain: "d"})
	if err != nil {
		t.Fatal(err)
	}
	b.fail = failed.Err()
	_, _, _, err = call(t.Context(), conn, methods(t)[0], "x")
	if got := status.Convert(err); got.Code() != codes.ResourceExhausted || got.Message() != "no room" || len(got.Details()) != 1 {
		t.Errorf("got %v, details %v, want the upstream error", got, got.Details())
	}
}
