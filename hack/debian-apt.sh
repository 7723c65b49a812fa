# To be sourced: own_apt DIRECTORY SUITE COMMAND... runs apt-get on a suite of Debian, with lists, cache and status of its own
# in the directory, so that nothing of the machine's apt is read or changed. apt checks the signatures. What packages depend
# on is looked for in the suite alone, not on this machine.
#
# IMAGEPIN_DEBIAN_MIRROR is another mirror.

own_apt() {
    local dir=$1 suite=$2
    local arch mirror=${IMAGEPIN_DEBIAN_MIRROR:-http://deb.debian.org/debian}
    shift 2
    arch=$(dpkg --print-architecture)
    if [ ! -f "$dir/status" ]; then
        mkdir -p "$dir"/{lists,cache,etc/preferences.d}
        echo "deb [arch=$arch signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$dir/sources.list"
        : >"$dir/status"
    fi
    apt-get -q -o "Dir::Etc=$dir/etc" -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=- \
        -o "Dir::State::Lists=$dir/lists" -o "Dir::State::Status=$dir/status" -o "Dir::Cache=$dir/cache" \
        -o APT::Sandbox::User=root -o "APT::Architecture=$arch" -o Acquire::Languages=none "$@"
}
