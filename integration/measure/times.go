package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc/PID/stat and /proc/stat, which is a hundredth of a second on all architectures of
// Linux.
const tick = 10 * time.Millisecond

// Times are processor times: in user mode, and in the kernel.
type Times struct{ User, Kernel time.Duration }

// Total returns the sum.
func (t Times) Total() time.Duration { return t.User + t.Kernel }

// Add returns the sum of two times.
func (t Times) Add(u Times) Times { return Times{t.User + u.User, t.Kernel + u.Kernel} }

// Sub returns the difference of two times.
func (t Times) Sub(u Times) Times { return Times{t.User - u.User, t.Kernel - u.Kernel} }

// CPU returns the CPU time of a process, its threads, and its children that have ended.
func CPU(pid int) (time.Duration, error) {
	own, children, err := ProcessTimes(pid)
	return own.Add(children).Total(), err
}

// ProcessTimes returns the processor times of a process with its threads, and of its children that have ended.
func ProcessTimes(pid int) (own, children Times, err error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return own, children, err
	}
	if own, children, err = processTimes(string(b)); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return own, children, err
}

// processTimes reads the line of /proc/PID/stat (proc_pid_stat(5)).
func processTimes(stat string) (own, children Times, err error) {
	// The name in parentheses can have spaces. The third field follows it.
	n, err := ticks(strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]), 11, 12, 13, 14) // utime, stime, cutime, cstime
	if err != nil {
		return own, children, err
	}
	return Times{n[0], n[1]}, Times{n[2], n[3]}, nil
}

// MachineTimes returns the processor times of all processes, of the kernel's own threads and of interrupts.
func MachineTimes() (Times, error) {
	const path = "/proc/stat"
	b, err := os.ReadFile(path)
	if err != nil {
		return Times{}, err
	}
	t, err := machineTimes(string(b))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return t, err
}

// machineTimes reads the first line of /proc/stat (proc_stat(5)).
func machineTimes(stat string) (Times, error) {
	line, _, _ := strings.Cut(stat, "\n")
	n, err := ticks(strings.Fields(line), 1, 2, 3, 6, 7) // user, nice, system, irq, softirq
	if err != nil {
		return Times{}, err
	}
	return Times{n[0] + n[1], n[2] + n[3] + n[4]}, nil
}

// CoreTimes returns how long each processor has been busy.
func CoreTimes() ([]time.Duration, error) {
	const path = "/proc/stat"
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all, err := coreTimes(string(b))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return all, err
}

// coreTimes reads the lines of the processors in /proc/stat (proc_stat(5)).
func coreTimes(stat string) (all []time.Duration, _ error) {
	for line := range strings.Lines(stat) {
		if !strings.HasPrefix(line, "cpu") || strings.HasPrefix(line, "cpu ") {
			continue
		}
		n, err := ticks(strings.Fields(line), 1, 2, 3, 6, 7) // user, nice, system, irq, softirq
		if err != nil {
			return nil, err
		}
		all = append(all, n[0]+n[1]+n[2]+n[3]+n[4])
	}
	return all, nil
}

// ticks returns times from the fields with these indexes.
func ticks(fields []string, indexes ...int) ([]time.Duration, error) {
	all := make([]time.Duration, len(indexes))
	for i, index := range indexes {
		if index >= len(fields) {
			return nil, fmt.Errorf("only %d fields in %q", len(fields), fields)
		}
		n, err := strconv.ParseInt(fields[index], 10, 64)
		if err != nil {
			return nil, err
		}
		all[i] = time.Duration(n) * tick
	}
	return all, nil
}

// OwnTimes returns the processor times of this process and its threads, in microseconds.
func OwnTimes() (Times, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return Times{}, fmt.Errorf("getrusage: %w", err)
	}
	return Times{time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())}, nil
}
