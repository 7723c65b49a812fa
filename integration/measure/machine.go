package measure

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// filesystems are names of file systems by their magic numbers (statfs(2)).
var filesystems = map[int64]string{0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x2fc12fc1: "zfs", 0x794c7630: "overlay"}

// Machine describes the processor, the memory, the kernel, and the file system of temporary files.
func Machine() (string, error) {
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		return "", err
	}
	var release strings.Builder
	for _, c := range uts.Release {
		if c == 0 {
			break
		}
		release.WriteByte(byte(c))
	}
	disk, err := fileSystem(os.TempDir()) // the roots of the daemons are there
	if err != nil {
		return "", err
	}
	model, memory := "", 0.0
	for _, from := range []string{"/proc/cpuinfo", "/proc/meminfo"} {
		f, err := os.Open(from)
		if err != nil {
			return "", err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
			} else if key == "MemTotal" {
				fmt.Sscanf(value, "%f", &memory)
			}
		}
		err = lines.Err()
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d cores (%s), %.0f GB, Linux %s, %s",
		runtime.NumCPU(), model, memory/1e6, release.String(), disk), nil
}

// fileSystem describes the file system of a directory.
func fileSystem(dir string) (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return "", err
	}
	name, ok := filesystems[int64(fs.Type)]
	if !ok {
		return fmt.Sprintf("file system %#x", fs.Type), nil
	}
	if name == "ext4" {
		name += journal(dir)
	}
	return name, nil
}

// journal says whether an ext4 file system has a journal, or nothing if that cannot be found (Documentation/ABI/testing/sysfs-fs-ext4).
func journal(dir string) string {
	var of syscall.Stat_t
	if syscall.Stat(dir, &of) != nil {
		return ""
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(of.Dev), unix.Minor(of.Dev)))
	if err != nil {
		return ""
	}
	task, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "journal_task"))
	switch {
	case err != nil:
		return ""
	case strings.TrimSpace(string(task)) == "<none>":
		return " without a journal"
	}
	return " with a journal"
}
