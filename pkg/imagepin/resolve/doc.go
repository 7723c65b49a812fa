// Package resolve speaks with registries: it finds the digest that a reference
// means now, and hands out the fetcher for what the digest names.
//
// A [Session] is one pull's conversation. Resolving and fetching use the same
// resolver of containerd and so the same authentication, which is why knowing
// the digest before anything is fetched costs no extra request.
//
// Registries are configured as for containerd's CRI: config_path (hosts.toml
// directories, several roots), headers, and the older mirrors, configs and
// auths.
package resolve
