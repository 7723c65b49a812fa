// Package resolve sends requests to registries. It resolves references to digests and fetches content.
//
// A [Session] has the requests of one pull. Resolving and fetching use the same resolver of containerd, and so the same
// authentication. For this reason, resolving the digest before fetching costs no extra request.
//
// Registries are configured as for containerd's CRI: config_path (hosts.toml directories, several roots), headers, and
// the older mirrors, configs and auths.
package resolve
