#!/bin/sh
# Installs or removes imagepin on the node whose root is mounted at $HOST, which
# is what the DaemonSets of install.yaml and remove.yaml run:
#
#   node.sh install standalone   imagepin.service beside the node's containerd
#   node.sh install containerd   a containerd with imagepin in place of the node's
#   node.sh remove
#
# kubelet's endpoint is not touched: it is the configuration of whoever set the
# node up. With "install containerd" nothing but containerd is restarted.
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
        echo "install standalone, or install containerd" >&2
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
    echo "usage: node.sh install standalone|containerd, or remove" >&2
    exit 2
    ;;
esac
