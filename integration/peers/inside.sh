# Runs "$inside" in new namespaces, with containerd's directories and cgroups of its own. "$dir" has the files that remain.
set -e

mount --make-rprivate /
mount -t proc proc /proc
mount_cgroups ""
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
fi

mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/imagepin-peers /run/t /run/etc /run/work
mount --bind "$dir" /run/imagepin-peers
mkdir "$dir/t"
mount --bind "$dir/t" /run/t
# The CNI plugins and tests with a containerd of their own write to /var/lib, and read what is in /etc and /opt.
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs /opt
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/work overlay /etc
cat "$dir/hosts" >/etc/hosts

# Mounts are shared, as on most nodes, but not what a suite mounts on the directory of containerd's socket.
mount --make-rshared /
mkdir -m 711 /run/c
mount --bind /run/c /run/c
mount --make-private /run/c

# This shell waits for the processes whose parents have exited.
"$inside" &
wait $!
