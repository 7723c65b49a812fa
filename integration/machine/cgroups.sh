# mount_cgroups ROOT mounts the cgroups of this cgroup namespace below ROOT/sys/fs/cgroup. A cgroup namespace takes effect
# with a mount of one's own.
mount_cgroups() {
    local root=$1 mounts type point options o controllers
    if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        return
    fi
    mounts=$(cat /proc/mounts)
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    while read -r _ point type options _; do
        case "$type $point" in
        "cgroup "/sys/fs/cgroup/*)
            controllers=
            for o in ${options//,/ }; do
                case $o in rw | ro | nosuid | nodev | noexec | relatime | xattr | release_agent=* | clone_children) ;; *) controllers+=${controllers:+,}$o ;; esac
            done
            case $controllers in name=*) controllers=none,$controllers ;; esac
            mkdir -p "$root$point"
            mount -t cgroup -o "$controllers" cgroup "$root$point"
            ;;
        "cgroup2 "/sys/fs/cgroup/*)
            mkdir -p "$root$point"
            mount -t cgroup2 cgroup2 "$root$point"
            ;;
        esac
    done <<<"$mounts"
}
