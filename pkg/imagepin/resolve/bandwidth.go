package resolve

import (
	"context"
	"io"

	"golang.org/x/time/rate"
)

// burst is how many bytes are received without a pause, and at most in one read.
const burst = 64 << 10

type bandwidthKey struct{}

// WithBandwidth returns a context in which all requests together receive at most bytesPerSecond. Zero means no limit.
func WithBandwidth(ctx context.Context, bytesPerSecond int64) context.Context {
	if bytesPerSecond <= 0 {
		return ctx
	}
	return context.WithValue(ctx, bandwidthKey{}, rate.NewLimiter(rate.Limit(bytesPerSecond), burst))
}

// limited returns a body that is read at most as fast as the bandwidth in ctx allows.
func limited(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	limit, ok := ctx.Value(bandwidthKey{}).(*rate.Limiter)
	if !ok {
		return body
	}
	return &limitedBody{ReadCloser: body, ctx: ctx, limit: limit}
}

type limitedBody struct {
	io.ReadCloser
	ctx   context.Context
	limit *rate.Limiter
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), burst)])
	if werr := b.limit.WaitN(b.ctx, n); werr != nil && err == nil {
		err = werr
	}
	return n, err
}
