package main

import (
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

// counters are what a daemon, this process and the machine have used since their start.
type counters struct {
	daemon   measure.Times // containerd
	children measure.Times // those that have ended
	own      measure.Times // of this process, in which the registry runs
	machine  measure.Times // all processes, and the kernel's own threads
	disk     time.Duration // 0 if there is no disk
	written  float64
}

// counters reads the counters of a side.
func (s *side) counters() (c counters, err error) {
	if c.daemon, c.children, err = measure.ProcessTimes(s.PID()); err != nil {
		return c, err
	}
	if c.own, err = measure.OwnTimes(); err != nil {
		return c, err
	}
	if c.machine, err = measure.MachineTimes(); err != nil {
		return c, err
	}
	if c.disk, _, err = measure.DiskBusy(s.Path("root")); err != nil {
		return c, err
	}
	c.written, err = measure.Written(s.PID())
	return c, err
}

// turn is what one pull has used. Times are in nanoseconds.
type turn struct {
	Wall time.Duration `json:"wall"`
	// User and Kernel are the processor time of containerd, with that of its children.
	User   time.Duration `json:"user"`
	Kernel time.Duration `json:"kernel"`
	// Children is the part of children, such as a decompressor.
	Children time.Duration `json:"children"`
	// Registry is the processor time of this process.
	Registry time.Duration `json:"registry"`
	// Rest is the processor time of all others: the kernel's own threads, and other processes.
	Rest time.Duration `json:"rest"`
	// Disk is how long the disk had a request. It is 0 if there is no disk.
	Disk time.Duration `json:"disk"`
	// Written is the number of bytes that containerd has written to files on a disk. The kernel may write them later.
	Written float64 `json:"written"`
	// Cores has the lines of [watchCores], with spaces between them. It is empty if they are not recorded.
	Cores string `json:"cores,omitempty"`
}

// since returns what was used since an earlier reading.
func (c counters) since(earlier counters, wall time.Duration) turn {
	children := c.children.Sub(earlier.children)
	daemon := c.daemon.Sub(earlier.daemon).Add(children)
	registry := c.own.Sub(earlier.own).Total()
	machine := c.machine.Sub(earlier.machine).Total()
	return turn{
		Wall: wall, User: daemon.User, Kernel: daemon.Kernel, Children: children.Total(), Registry: registry,
		// The times of processes are exact, those of the machine are counted in ticks.
		Rest: max(0, machine-daemon.Total()-registry),
		Disk: c.disk - earlier.disk, Written: c.written - earlier.written,
	}
}
