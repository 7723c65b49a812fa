package config

// SetDropDirectory returns the key of a drop directory that is neither the default nor empty, or "".
func (s Settings) SetDropDirectory() string {
	switch {
	case s.LocksDirectory != "" && s.LocksDirectory != defaultLocksDirectory:
		return "locks_directory"
	case s.BundlesDirectory != "" && s.BundlesDirectory != defaultBundlesDirectory:
		return "bundles_directory"
	}
	return ""
}
