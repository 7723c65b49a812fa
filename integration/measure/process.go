package measure

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RSS returns the resident memory of a process in bytes: in total, and without the pages of files, such as the binary,
// which processes can share.
func RSS(pid int) (total, own float64, err error) {
	sizes, err := status(pid, "VmRSS", "RssAnon")
	if err != nil {
		return 0, 0, err
	}
	return sizes[0], sizes[1], nil
}

// Resident returns the resident memory of a process in bytes. Unlike [RSS], it can be 0, for a process that has just begun.
func Resident(pid int) (float64, error) {
	path := fmt.Sprintf("/proc/%d/statm", pid) // proc_pid_statm(5)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return float64(resident * os.Getpagesize()), nil
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
func Read(pid int) (float64, error) { return processIO(pid, "rchar") }

// Written returns the number of bytes that a process has written to files since its start, and that are or will be
// written to a disk. Files on tmpfs do not count.
func Written(pid int) (float64, error) { return processIO(pid, "write_bytes") }

// processIO returns a field of /proc/PID/io.
func processIO(pid int, name string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/io", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := ioField(string(b), name)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return n, err
}

// ioField reads a field of /proc/PID/io (proc_pid_io(5)).
func ioField(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no %s", name)
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
