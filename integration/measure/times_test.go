package measure

import (
	"os"
	"slices"
	"testing"
	"time"
)

// The samples are of Linux 6.18.

func TestProcessTimes(t *testing.T) {
	const stat = "4242 (containerd (x) 1) S 4180 4242 4242 0 -1 4194560 61345 1284 12 3 231 104 17 9 20 0 14 0 907312 2264276992 11520 " +
		"18446744073709551615 4194304 33161893 140729265713600 0 0 0 0 0 2143420159 0 0 0 17 1 0 0 0 0 0 44388352 45302832 873349120 0 0 0 0 0\n"
	own, children, err := processTimes(stat)
	if want := (Times{2310 * time.Millisecond, 1040 * time.Millisecond}); err != nil || own != want {
		t.Errorf("process: got %v, %v, want %v", own, err, want)
	}
	if want := (Times{170 * time.Millisecond, 90 * time.Millisecond}); children != want {
		t.Errorf("children: got %v, want %v", children, want)
	}
	for _, bad := range []string{"", "4242 (containerd) S 1 2 3", "4242 (c) S 1 1 1 0 -1 4 6 1 1 3 user 104 17 9 20"} {
		if _, _, err := processTimes(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestMachineTimes(t *testing.T) {
	const stat = `cpu  2127770 379424 1164306 1091996 39616 11 46795 5131 7 3
cpu0 1082892 183843 578752 559047 14194 0 6527 2403 0 0
intr 1 2 3
`
	got, err := machineTimes(stat)
	// Time of guests is in that of users.
	want := Times{(2127770 + 379424) * tick, (1164306 + 11 + 46795) * tick}
	if err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := machineTimes("cpu  1 2\n"); err == nil {
		t.Error("no error for a line that is too short")
	}
}

func TestCoreTimes(t *testing.T) {
	const stat = `cpu  3 0 0 0 0 0 0 0 0 0
cpu0 1 2 3 1000 2000 4 5 6 0 0
cpu1 10 20 30 1000 2000 40 50 60 0 0
intr 1 2 3
`
	got, err := coreTimes(stat)
	if want := []time.Duration{15 * tick, 150 * tick}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := coreTimes("cpu0 1 2\n"); err == nil {
		t.Error("no error for a line that is too short")
	}
	if all, err := CoreTimes(); err != nil || len(all) == 0 {
		t.Errorf("this machine: got %v, %v", all, err)
	}
}

func TestIOField(t *testing.T) {
	const text = "rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nsyscw: 632675\nread_bytes: 4096\nwrite_bytes: 323932160\ncancelled_write_bytes: 17\n"
	for name, want := range map[string]float64{"rchar": 323934931, "write_bytes": 323932160, "cancelled_write_bytes": 17} {
		if got, err := ioField(text, name); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := ioField(text, "bytes"); err == nil {
		t.Error("no error for a field that is missing")
	}
}

func TestDiskBusy(t *testing.T) {
	const stat = " 2517914   245632 78144890  3167404 34089843  7198725 821247288 15875951        0  3292732 21423990  6974168     2536 496801896  1009143  7957371  1371491\n"
	if got, err := diskBusy(stat); err != nil || got != 3292732*time.Millisecond {
		t.Errorf("got %v, %v, want 3292.732 s", got, err)
	}
	if _, err := diskBusy("1 2 3\n"); err == nil {
		t.Error("no error for a line that is too short")
	}
	// The device number of /proc is that of no block device.
	if _, ok, err := DiskBusy("/proc"); ok || err != nil {
		t.Errorf("/proc: got a disk (%v), %v", ok, err)
	}
	if _, _, err := DiskBusy(t.TempDir() + "/missing"); err == nil {
		t.Error("no error for a path that is missing")
	}
}

// TestTimes reads the times of this process in two ways, and those of the machine.
func TestTimes(t *testing.T) {
	before, err := OwnTimes()
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := OwnTimes()
		if err != nil {
			t.Fatal(err)
		}
		if now.Sub(before).Total() >= 2*tick {
			break
		}
	}
	read, _, err := ProcessTimes(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own, err := OwnTimes()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel rounds each of the two times down to ticks.
	if read.Total() < tick || read.Total() > own.Total() {
		t.Errorf("/proc has %v, getrusage %v", read, own)
	}
	machine, err := MachineTimes()
	if err != nil || machine.Total() <= 0 {
		t.Errorf("machine: got %v, %v", machine, err)
	}
}
