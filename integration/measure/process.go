package measure

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc/PID/stat, which is a hundredth of a second on all architectures of Linux.
const tick = 10 * time.Millisecond

// CPU returns the CPU time of a process, its threads, and its children that have ended.
func CPU(pid int) (time.Duration, error) {
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

// RSS returns the resident memory of a process in bytes: in total, and without the pages of files, such as the binary,
// which processes can share.
func RSS(pid int) (total, own float64, err error) {
	sizes, err := status(pid, "VmRSS", "RssAnon")
	if err != nil {
		return 0, 0, err
	}
	return sizes[0], sizes[1], nil
}

// PeakRSS returns the maximum of the resident memory of a process in bytes, since its start or [ResetPeakRSS].
func PeakRSS(pid int) (float64, error) {
	sizes, err := status(pid, "VmHWM")
	if err != nil {
		return 0, err
	}
	return sizes[0], nil
}

// ResetPeakRSS makes [PeakRSS] return the maximum from now on.
func ResetPeakRSS(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // proc_pid_clear_refs(5)
}

// Read returns the number of bytes that a process has read with system calls since its start: from sockets, files, and
// pipes.
func Read(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var n float64
		if _, err := fmt.Sscanf(line, "rchar: %f", &n); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/io has no rchar", pid)
}

// status returns fields of /proc/PID/status in bytes.
func status(pid int, names ...string) ([]float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	values := make([]float64, len(names))
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		for i, name := range names {
			var kB float64
			if _, err := fmt.Sscanf(lines.Text(), name+": %f kB", &kB); err == nil {
				values[i] = kB * 1024
			}
		}
	}
	for i, name := range names {
		if values[i] == 0 {
			return nil, errors.Join(fmt.Errorf("/proc/%d/status has no %s", pid, name), lines.Err())
		}
	}
	return values, lines.Err()
}
