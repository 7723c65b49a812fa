package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// pprof gets a profile from the debug socket of imagepin, or of stock containerd.
func (s *side) pprof(ctx context.Context, path string) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", s.DebugAddress())
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/debug/pprof/"+path, nil)
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
	b, err := s.pprof(ctx, "heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var n float64
		if _, err := fmt.Sscanf(line, "# HeapAlloc = %f", &n); err == nil {
			return n, nil
		}
	}
	return 0, errors.New("the heap profile has no HeapAlloc")
}
