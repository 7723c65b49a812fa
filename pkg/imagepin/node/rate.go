package node

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/containerd/log"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
)

// downloadRate is the limit of what the node receives: that of an operator, which is kept in a file, or otherwise the configured one.
type downloadRate struct {
	limiter bandwidth.Limiter
	path    string

	mu         sync.Mutex
	configured int64
	set        *int64 // by an operator; nil if not
}

// load reads the limit of an operator from the directory of the node's key.
func (r *downloadRate) load(nodeKey string, configured int64) {
	r.path = filepath.Join(filepath.Dir(nodeKey), "download-rate")
	n, ok, err := bandwidth.LoadRate(r.path)
	if err != nil {
		log.L.WithError(err).Warn("ignoring the download rate of an operator, max_download_rate applies")
	}
	if ok {
		r.set = &n
	}
	r.configure(configured)
}

// configure sets the configured limit.
func (r *downloadRate) configure(bytesPerSecond int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.configured = bytesPerSecond
	r.apply()
}

func (r *downloadRate) apply() {
	now := r.configured
	if r.set != nil {
		now = *r.set
	}
	r.limiter.SetRate(now)
}

// change sets the limit of an operator, or removes it if it is nil. It is kept over a restart.
func (r *downloadRate) change(ctx context.Context, bytesPerSecond *int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if bytesPerSecond == nil {
		err = bandwidth.RemoveRate(r.path)
	} else {
		err = bandwidth.SaveRate(r.path, *bytesPerSecond)
	}
	if err != nil {
		return err
	}
	r.set = bytesPerSecond
	r.apply()
	log.G(ctx).WithField("bytesPerSecond", r.limiter.Rate()).Info("download rate changed")
	return nil
}

// status returns the limit for the control service.
func (r *downloadRate) status() *api.DownloadRate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &api.DownloadRate{BytesPerSecond: r.limiter.Rate(), Configured: r.configured, Changed: r.set != nil}
}

// limit runs the request of an operator.
func (r *downloadRate) limit(ctx context.Context, q *api.LimitRateRequest) (*api.DownloadRate, error) {
	if q.BytesPerSecond != nil || q.GetReset_() {
		if err := r.change(ctx, q.BytesPerSecond); err != nil {
			return nil, err
		}
	}
	return r.status(), nil
}
