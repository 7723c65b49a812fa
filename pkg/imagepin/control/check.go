package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
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
		resp := s.report(ctx, report, r.GetRepair(), nil)
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

// report converts the findings of a check, and repairs them if requested. after is called after each repair; an error
// from it ends the repairs. after may be nil.
func (s *Server) report(ctx context.Context, report health.Report, repair bool, after func() error) *api.CheckResponse {
	resp := &api.CheckResponse{Checked: int64(report.Checked)}
	for _, f := range report.Findings {
		a := &api.Finding{Subject: f.Subject, Problem: f.Problem, Repair: f.RepairHint(), NotAdopted: f.Kind == health.NotAdopted, Unverified: f.Kind == health.Unverified}
		resp.Findings = append(resp.Findings, a)
		if !repair || a.NotAdopted || a.Unverified || ctx.Err() != nil {
			continue
		}
		done, err := s.config.Health.Repair(ctx, f)
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
