package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Check returns an error if something that a disk needs is missing.
func Check() error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root, to mount disks")
	}
	for path, what := range map[string]string{"/dev/fuse": "FUSE (modprobe fuse)", "/dev/loop-control": "loop devices (modprobe loop)"} {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %s: %v", what, path, err))
			continue
		}
		_ = unix.Close(fd)
	}
	for _, name := range []string{"mkfs.ext4", "unshare", "mount"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name+" (packages e2fsprogs and util-linux)")
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine cannot cut power from a disk, it lacks %s", strings.Join(missing, "; "))
	}
	return nil
}

// Format returns a disk with an empty ext4 file system.
func Format(size int64) (*Disk, error) {
	d := New(size)
	f, err := d.memory()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The kernel would write the tables of inodes in the background.
	cmd := exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return d, d.load(f)
}

// memory returns a file in memory with the content of the disk.
func (d *Disk) memory() (*os.File, error) {
	fd, err := unix.MemfdCreate("imagepin-disk", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "imagepin-disk")
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := []error{f.Truncate(d.size)}
	for n, c := range d.chunks {
		if c != nil {
			_, err := f.WriteAt(c.content[:], int64(n)*chunkSize)
			errs = append(errs, err)
		}
	}
	return f, errors.Join(errs...)
}

// load reads the parts of a file that have content.
func (d *Disk) load(f *os.File) error {
	b := make([]byte, chunkSize)
	zeros := make([]byte, chunkSize)
	for at := int64(0); ; at += chunkSize {
		next, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		at = next / chunkSize * chunkSize
		if _, err := f.ReadAt(b, at); err != nil {
			return err
		}
		if string(b) != string(zeros) {
			d.write(b, at)
		}
	}
}

// Mounted is a disk that is mounted.
type Mounted struct {
	dir   string
	ended func()
}

// Mount mounts the disk's ext4 file system. What is written to it changes the disk.
func (d *Disk) Mount(dir string) (*Mounted, error) {
	fd, ended, err := d.serve()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return &Mounted{dir, ended}, attach(fd, dir)
}

// MountCopy mounts a copy of the disk, which is faster than [Disk.Mount]. What is written to it does not change the disk.
func (d *Disk) MountCopy(dir string) (*Mounted, error) {
	f, err := d.memory()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return &Mounted{dir, func() {}}, attach(int(f.Fd()), dir)
}

// Unmount unmounts the file system, unless it is unmounted already, and waits until all that was written is on the disk. A process
// that still has a file open, such as a child of this process that is about to execute its program, delays that.
func (m *Mounted) Unmount() error {
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmounting %s: %w", m.dir, err)
	}
	m.ended()
	return nil
}

// attach mounts a file through a loop device, which the kernel detaches when it is unmounted.
func attach(file int, dir string) error {
	for {
		device, busy, err := loop(file)
		if busy {
			continue // another process was faster
		}
		if err != nil {
			return err
		}
		defer device.Close()
		if err := unix.Mount(device.Name(), dir, "ext4", 0, ""); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", device.Name(), dir, err)
		}
		return nil
	}
}

func loop(file int) (_ *os.File, busy bool, _ error) {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("/dev/loop-control: %w", err)
	}
	defer unix.Close(control)
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, false, fmt.Errorf("no free loop device: %w", err)
	}
	device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return nil, false, err
	}
	config := &unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	copy(config.Info.File_name[:], "imagepin-disk")
	if err := unix.IoctlLoopConfigure(int(device.Fd()), config); err != nil {
		_ = device.Close()
		return nil, errors.Is(err, unix.EBUSY), fmt.Errorf("%s: %w", device.Name(), err)
	}
	return device, false, nil
}
