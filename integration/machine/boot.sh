# Boots a machine: systemd of a Debian below $root, with namespaces and cgroups of its own and the network of its host.
# It runs in new namespaces already, and in the cgroup that is to be the machine's root.
set -e

mount --make-rprivate /
mount -t overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" overlay "$root"

mount -t proc proc "$root/proc"
# The kernel's settings are the host's.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind /sys "$root/sys"
mount -o remount,bind,ro "$root/sys"

mount_cgroups "$root"

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for d in null zero full random urandom tty; do
    touch "$root/dev/$d"
    mount --bind "/dev/$d" "$root/dev/$d"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
# The upper directory of a snapshot cannot be in an overlay.
mkdir -p "$root/var/lib/containerd"
mount --bind "$dir/containerd" "$root/var/lib/containerd"

cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=multi-user.target
