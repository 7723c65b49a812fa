//go:build unix

package config

// The defaults of locks_directory and bundles_directory.
const (
	defaultLocksDirectory   = "/etc/imagepin/locks.d"
	defaultBundlesDirectory = "/var/lib/imagepin/bundles"
)
