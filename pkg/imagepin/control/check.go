package control

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// Check implements the API.
func (s *Server) Check(ctx context.Context, r *api.CheckRequest) (*api.CheckResponse, error) {
	return guarded(ctx, s, "Check", func(ctx context.Context) (*api.CheckResponse, error) {
		report, err := s.config.Health.Check(ctx, s.pinnedRef)
		if err != nil {
			return nil, err
		}
		resp := s.report(ctx, report, repairs{all: r.GetRepair(), removeExited: r.GetRemoveExited()}, nil)
		return resp, s.checkPins(ctx, r.GetRepair(), resp)
	})
}

// checkPins adds the findings of a check of the pins, and repairs them if requested.
func (s *Server) checkPins(ctx context.Context, repair bool, resp *api.CheckResponse) error {
	checked, findings, err := s.config.Pins.Check(ctx)
	if err != nil {
		return err
	}
	resp.Checked += int64(checked)
	for _, f := range findings {
		a := &api.Finding{Subject: f.Record, Problem: f.Problem, Repair: f.Repair}
		if repair {
			done, err := s.config.Pins.Repair(ctx, f)
			a.Repair, a.Repaired = done, done != pin.Ignored
			if err != nil {
				a.Error = err.Error()
			}
		}
		resp.Findings = append(resp.Findings, a)
	}
	return nil
}

// repairs are what is done about the findings of a check.
type repairs struct{ all, removeExited bool }

// report converts the findings of a check, and repairs them if requested. after is called after each repair; an error
// from it ends the repairs. after may be nil.
func (s *Server) report(ctx context.Context, report health.Report, do repairs, after func() error) *api.CheckResponse {
	resp := &api.CheckResponse{Checked: int64(report.Checked)}
	for _, f := range report.Findings {
		a := &api.Finding{Subject: f.Subject, Problem: f.Problem, Repair: f.RepairHint(), NotAdopted: f.Kind == health.NotAdopted, Unverified: f.Kind == health.Unverified}
		resp.Findings = append(resp.Findings, a)
		if !do.all || a.NotAdopted || a.Unverified || ctx.Err() != nil {
			continue
		}
		done, err := s.config.Health.Repair(ctx, f)
		if do.removeExited && mayBeExited(f, err) {
			var rerr error
			a.Removed, rerr = s.removeExited(ctx, f.Loss.Entry)
			if err = errors.Join(err, rerr); rerr == nil && len(a.GetRemoved()) > 0 {
				done, err = s.config.Health.Repair(ctx, f)
			}
		}
		a.Repair, a.Repaired = string(done), done.Succeeded()
		if err != nil {
			a.Error = err.Error()
		}
		if after != nil && after() != nil {
			return resp
		}
	}
	return resp
}

// mayBeExited reports whether a repair failed with err because containers, which may have exited, stand on a snapshot that must be
// removed.
func mayBeExited(f health.Finding, err error) bool {
	var typed *imagepin.Error
	if errors.As(err, &typed) {
		return typed.Reason == imagepin.SnapshotNotReplaceable
	}
	return f.Loss.MissingDirectory && errdefs.IsFailedPrecondition(err)
}

// removeExited removes the exited containers and stopped sandboxes that stand on the unusable snapshots of an image.
func (s *Server) removeExited(ctx context.Context, e imagepin.Entry) (removed []string, _ error) {
	from, err := s.config.Health.LowestUnusable(ctx, e)
	if err != nil || from == "" {
		return nil, err
	}
	return s.config.Exited.RemoveExited(ctx, e, from)
}
