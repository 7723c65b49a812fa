package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc/PID/stat, which is a hundredth of a second on all architectures of Linux.
const tick = 10 * time.Millisecond

// cpu returns the CPU time of a process, its threads, and its children that have ended.
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses can have spaces. The third field follows it (proc(5)).
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 15 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// rss returns the resident memory of a process in bytes: in total, and without the pages of files, such as the binary,
// which processes can share.
func rss(pid int) (total, own float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kB float64
		if _, err := fmt.Sscanf(lines.Text(), "VmRSS: %f kB", &kB); err == nil {
			total = kB * 1024
		}
		if _, err := fmt.Sscanf(lines.Text(), "RssAnon: %f kB", &kB); err == nil {
			own = kB * 1024
		}
	}
	if total == 0 {
		return 0, 0, errors.Join(fmt.Errorf("/proc/%d/status has no VmRSS", pid), lines.Err())
	}
	return total, own, lines.Err()
}

// pprof gets a profile from containerd's debug socket.
func (s *side) pprof(ctx context.Context, path string) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", s.Path("debug.sock"))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://containerd/debug/pprof/"+path, nil)
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
