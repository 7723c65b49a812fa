package command

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// statuses is a server that returns one state after the other, and the last one again. It calls last when it is asked
// again after the last one.
type statuses struct {
	api.UnimplementedControlServer
	all  []*api.StatusResponse
	last func()

	again int
}

func (s *statuses) Status(context.Context, *api.StatusRequest) (*api.StatusResponse, error) {
	st := s.all[0]
	if len(s.all) > 1 {
		s.all = s.all[1:]
	} else if s.again++; s.again > 1 && s.last != nil {
		s.last()
	}
	return st, nil
}

func healthy() *api.StatusResponse {
	return &api.StatusResponse{
		Version: "0.1.2", ContainerdVersion: "v2.4.2", Mode: "plugin", StartedAt: ago(3 * time.Hour), At: ago(0),
		Index: &api.IndexStatus{Ready: true, ListedAt: ago(3 * time.Hour), TookMs: 14},
		Targets: []*api.TargetStatus{
			{Target: &api.Target{Platform: hostPlatform, Snapshotter: "native"}, Handlers: []string{"kata"}, Images: 3},
			{Target: &api.Target{Platform: hostPlatform, Snapshotter: "overlayfs"}, Handlers: []string{"runc"}, Default: true, Images: 12},
		},
		Images: 12, Pins: &api.PinStatus{Pins: 3, Drifted: 1, RetainedBytes: 880966, MaxRetainedBytes: 10 << 30},
	}
}

func unhealthy() *api.StatusResponse {
	st := healthy()
	st.Mode, st.Cluster, st.RegistryFallbacks, st.Pins.Provisional = "serve", true, 2, 1
	st.Pins.Gone, st.Pins.LookupIntervalSeconds, st.Pins.LookedUpAt = 1, int64(6*time.Hour/time.Second), ago(2*time.Hour)
	st.Index.Lost, st.Index.PendingRepairs = 2, 1
	st.Index.Damaged, st.Index.Unused, st.Index.Dropped = 2, 4, 1
	st.Lock = &api.LockSummary{Digest: digestOld, AppliedAt: ago(50 * time.Hour), Images: 3, Ready: 2, DriftedContainers: 1}
	st.Targets[0].Error = "no answer within 2s"
	st.Pulls = []*api.RunningPull{
		{Ref: appRef, Target: st.Targets[1].Target, Since: ago(20 * time.Second), Received: 100 << 20, Total: 240 << 20,
			Rate: 10 << 20, LeftSeconds: 14, WaitsFor: "rate limit"},
		{Ref: "registry.example.com/shop/web:v1", Target: st.Targets[0].Target, Since: ago(time.Second), WaitsFor: "another pull"},
	}
	st.MorePulls = 2
	st.DownloadRate = &api.DownloadRate{BytesPerSecond: 10 << 20, Configured: 50 << 20, Changed: true}
	st.Problems = []*api.Problem{
		{Message: "snapshotter native does not answer: no answer within 2s", Hint: "Pods of its handlers cannot start. Restart the snapshotter, and see its log."},
		{Message: "damaged keys: 2\nof 12", Hint: "To see the reasons, run: imagepin check\nTo repair them: imagepin check --repair"},
	}
	return st
}

func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		status *api.StatusResponse
		code   int
	}{
		"status":             {healthy(), exitOK},
		"status-unhealthy":   {unhealthy(), exitFailed},
		"status-starting":    {&api.StatusResponse{Version: "0.1.2", Mode: "plugin", StartedAt: ago(time.Second), Index: &api.IndexStatus{}, Pins: &api.PinStatus{}, Problems: []*api.Problem{{Message: "the index is not built", Hint: "Wait."}}}, exitFailed},
		"status-uninstalled": {&api.StatusResponse{Version: "0.1.2", Mode: "plugin", StartedAt: ago(time.Hour), Problems: []*api.Problem{{Message: "imagepin is uninstalled", Hint: "Start stock containerd."}}}, exitFailed},
	} {
		for _, format := range []string{outputTable, outputJSON} {
			_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, &statuses{all: []*api.StatusResponse{c.status}}) })
			got := runAt(t, address, bytes.NewReader(nil), "status", "-o", format)
			if got.code != c.code || got.err != "" {
				t.Errorf("%s: exit code %d, want %d: %s", name, got.code, c.code, got.err)
			}
			golden(t, name+"."+format, got.out)
			if format == outputTable {
				for line := range strings.Lines(got.out) {
					if len(line) > 81 {
						t.Errorf("%s: a line has %d columns: %s", name, len(line)-1, line)
					}
				}
			}
		}
	}
}

// A watch prints changes until a signal ends it.
func TestStatusWatch(t *testing.T) {
	after := unhealthy()
	after.Pulls = nil
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &statuses{all: []*api.StatusResponse{healthy(), unhealthy(), unhealthy(), after}, last: func() { cancel(signalError{os.Interrupt}) }}
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	var out, errOut bytes.Buffer
	a := &app{Stdio: Stdio{Out: &out, Err: &errOut}, now: func() time.Time { return testNow }, interval: time.Millisecond}
	if code := a.run(ctx, []string{"imagepin", "--address", address, "status", "--watch"}); code != exitInterrupted || errOut.Len() > 0 {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, &errOut)
	}
	golden(t, "status-watch.table", out.String())
}

// The screen of a watch has the state of pulls and the last changes.
func TestStatusWatchScreen(t *testing.T) {
	now := testNow
	w := &statusWatch{now: func() time.Time { return now }}
	var out bytes.Buffer
	a := &app{Stdio: Stdio{Out: &out}}
	draw := func(st *api.StatusResponse) {
		t.Helper()
		out.Reset()
		if err := w.draw(a, w.update(st)); err != nil {
			t.Fatal(err)
		}
	}
	draw(unhealthy())
	now = now.Add(2 * time.Second)
	next := unhealthy()
	next.Pulls[0].Received, next.Pulls[0].LeftSeconds = 120<<20, 12
	draw(next)
	golden(t, "status-screen.txt", out.String())
}
