package control

import (
	"context"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// Check implements the API.
func (s *Server) Check(ctx context.Context, r *api.CheckRequest) (*api.CheckResponse, error) {
	return guarded(ctx, s, "Check", func(ctx context.Context) (*api.CheckResponse, error) {
		report, err := s.Store.Check(ctx)
		if err != nil {
			return nil, err
		}
		resp := &api.CheckResponse{Checked: int64(report.Checked + len(s.Config.Pins.List()))}
		for _, f := range report.Findings {
			a := &api.Finding{Subject: f.Subject, Problem: f.Problem, Repair: f.Repair()}
			if r.GetRepair() {
				if err := s.Mend(ctx, f); err != nil {
					a.Error = err.Error()
				} else {
					a.Repaired = true
				}
			}
			resp.Findings = append(resp.Findings, a)
		}
		return resp, nil
	})
}
