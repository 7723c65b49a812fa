package control

import (
	"context"
	"errors"
	"strconv"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// LimitRate implements the API.
func (s *Server) LimitRate(ctx context.Context, r *api.LimitRateRequest) (*api.DownloadRate, error) {
	return guarded(ctx, s, "LimitRate", func(ctx context.Context) (*api.DownloadRate, error) {
		switch n := r.GetBytesPerSecond(); {
		case n < 0:
			return nil, imagepin.Invalid("rate", strconv.FormatInt(n, 10), errors.New("is negative"))
		case r.BytesPerSecond != nil && r.GetReset_():
			return nil, imagepin.Invalid("request", "LimitRate", errors.New("has a rate and a reset"))
		}
		return s.config.LimitRate(ctx, r)
	})
}
