#!/bin/sh
# Installs or removes imagepin on the node whose root is mounted at $HOST. The
# DaemonSets of install.yaml and remove.yaml run it:
#
#   node.sh install standalone   imagepin.service beside the node's containerd
#   node.sh install containerd   a containerd with imagepin instead of the node's
#   node.sh remove
#
# It does not change kubelet's endpoint. "install containerd" restarts containerd
# only.
set -eu

HOST=${HOST:-/host}
PACKAGES=${PACKAGES:-/packages}

# on runs a command in the node's own namespaces.
on() { nsenter --target 1 --mount --uts --ipc --net --pid -- "$@"; }

install_node() {
    mkdir -p "$HOST/var/cache/imagepin"
    cp "$PACKAGES"/*.deb "$HOST/var/cache/imagepin/"
    case "$1" in
    standalone)
        on sh -c 'dpkg --install /var/cache/imagepin/imagepin_*.deb'
        on imagepin config check --serve /etc/imagepin/config.toml
        on systemctl enable --now imagepin.socket imagepin.service
        ;;
    containerd)
        on sh -c 'dpkg --install /var/cache/imagepin/imagepin_*.deb /var/cache/imagepin/imagepin-containerd_*.deb'
        on systemctl restart containerd.service
        ;;
    *)
        echo "usage: node.sh install standalone|containerd" >&2
        exit 2
        ;;
    esac
    rm -r "$HOST/var/cache/imagepin"
}

remove_node() {
    if on systemctl --quiet is-active imagepin.service; then
        on imagepin --address /run/imagepin/imagepin.sock uninstall --yes
    elif on dpkg-query --show --showformat '${Status}\n' imagepin-containerd 2>/dev/null | grep -q '^install ok'; then
        on imagepin uninstall --yes
        on dpkg --purge imagepin-containerd
        on systemctl restart containerd.service
    fi
    on dpkg --purge imagepin
}

case "${1:-}" in
install) install_node "${2:-}" ;;
remove) remove_node ;;
*)
    echo "usage: node.sh install standalone|containerd, or node.sh remove" >&2
    exit 2
    ;;
esac
