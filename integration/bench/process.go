package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"

	"github.com/imagepin/imagepin/integration/measure"
)

// pprof gets a profile from the debug socket.
func (s *side) pprof(ctx context.Context, path string) ([]byte, error) {
	return s.debug(ctx, "pprof/"+path)
}

// debug gets a path below /debug from the debug socket of imagepin, or of stock containerd.
func (s *side) debug(ctx context.Context, path string) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", s.DebugAddress())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/debug/"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("debug socket: %s: %s", res.Status, body)
	}
	return body, err
}

// goroutines returns the number of goroutines.
func (s *side) goroutines(ctx context.Context) (float64, error) {
	b, err := s.pprof(ctx, "goroutine?debug=1")
	if err != nil {
		return 0, err
	}
	var n float64
	_, err = fmt.Sscanf(string(b), "goroutine profile: total %f", &n)
	return n, err
}

// liveHeap collects garbage and returns the number of bytes in use.
func (s *side) liveHeap(ctx context.Context) (float64, error) {
	const name = "HeapAlloc"
	b, err := s.pprof(ctx, "heap?debug=1&gc=1")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var n float64
		if _, err := fmt.Sscanf(line, "# "+name+" = %f", &n); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("the heap profile has no %s", name)
}

// mallocs returns the number of allocations since the start of the process.
func (s *side) mallocs(ctx context.Context) (float64, error) {
	b, err := s.debug(ctx, "vars")
	if err != nil {
		return 0, err
	}
	var vars struct {
		Memstats runtime.MemStats `json:"memstats"`
	}
	if err := json.Unmarshal(b, &vars); err != nil {
		return 0, fmt.Errorf("variables of the debug socket: %w", err)
	}
	return float64(vars.Memstats.Mallocs), nil
}

// allocations returns the median of the numbers of allocations of the process during a call. The median leaves out
// calls during which the daemon also does something else.
func (s *side) allocations(ctx context.Context, call func() error) (float64, error) {
	const times = 7
	var all []float64
	for range times {
		first, err := s.mallocs(ctx)
		if err != nil {
			return 0, err
		}
		second, err := s.mallocs(ctx)
		if err != nil {
			return 0, err
		}
		if err := call(); err != nil {
			return 0, err
		}
		third, err := s.mallocs(ctx)
		if err != nil {
			return 0, err
		}
		// Reading the number allocates too.
		all = append(all, max(0, third-second-(second-first)))
	}
	return measure.Median(all), nil
}
