package measure

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
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
	var fs syscall.Statfs_t
	// The roots of the daemons are in this directory.
	if err := syscall.Statfs(os.TempDir(), &fs); err != nil {
		return "", err
	}
	disk, ok := filesystems[int64(fs.Type)]
	if !ok {
		disk = fmt.Sprintf("file system %#x", fs.Type)
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
