//go:build unix

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// serveHTTP serves until the returned function is called.
func serveHTTP(l net.Listener, h http.Handler) (stop func()) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // returns http.ErrServerClosed
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		<-served
	}
}

// metricsHandler serves metrics under the same path as containerd, and health: /healthz succeeds while the process
// runs, and /readyz while calls are answered.
func metricsHandler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/metrics", promhttp.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func debugHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// listenHTTP opens the configured addresses for metrics, health and profiles.
func (s *Server) listenHTTP() (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	if a := s.file.Metrics.Address; a != "" {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return nil, fmt.Errorf("metrics.address: %w", err)
		}
		stops = append(stops, serveHTTP(l, metricsHandler(s.Ready)))
	}
	if a := s.file.Debug.Address; a != "" {
		l, err := listenUnix(a)
		if err != nil {
			stop()
			return nil, fmt.Errorf("debug.address: %w", err)
		}
		stops = append(stops, serveHTTP(l, debugHandler()))
	}
	return stop, nil
}

// errStarting is the error of calls until containerd is connected.
var errStarting = errors.New("starting")
