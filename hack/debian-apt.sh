# Source this file. own_apt DIRECTORY SUITE COMMAND... runs apt-get on a Debian suite. Its lists, cache and status are
# in the directory, so that it neither reads nor changes those of the machine. It resolves dependencies only in the
# suite. apt checks the signatures.
#
# IMAGEPIN_DEBIAN_MIRROR sets another mirror.

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
