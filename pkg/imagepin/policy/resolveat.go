package policy

// ResolveAt is which hosts of a registry resolve a tag.
type ResolveAt string

const (
	// ResolveAtHosts is as in containerd: the first host of the registry that has the capability resolve and answers.
	ResolveAtHosts ResolveAt = "hosts"
	// ResolveAtOrigin is only the origin: the server in hosts.toml, by default the registry itself. Mirrors serve content.
	ResolveAtOrigin ResolveAt = "origin"
)
