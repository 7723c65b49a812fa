package config

// The defaults of locks_directory and bundles_directory. There are none: what is in them is applied, and Windows has no
// directory for it in which only administrators can create files.
const (
	defaultLocksDirectory   = ""
	defaultBundlesDirectory = ""
)
