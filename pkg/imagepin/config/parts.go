package config

import (
	"errors"
	"fmt"
)

const (
	// PartType is the type of the plugins of containerd that are parts of imagepin which a build can leave out.
	PartType = "io.containerd.imagepin.part.v1"
	// ClusterPart is the ID of the part for pins in the Kubernetes API, and FleetPart that of the part for locks and bundles.
	ClusterPart, FleetPart = "cluster", "fleet"
)

// CheckParts returns the errors of the keys that need a part which a node does not have. They are ErrInvalidArgument. has reports
// whether the node has a part.
func (s Settings) CheckParts(has func(part string) bool) error {
	var errs []error
	check := func(part, key string, set bool) {
		if set && !has(part) {
			errs = append(errs, keyError(key, errors.New(withoutPart(part))))
		}
	}
	check(ClusterPart, "cluster.kubeconfig", s.Cluster.Kubeconfig != "")
	check(FleetPart, "locks_directory", s.LocksDirectory != "" && s.LocksDirectory != defaultLocksDirectory)
	check(FleetPart, "bundles_directory", s.BundlesDirectory != "" && s.BundlesDirectory != defaultBundlesDirectory)
	return errors.Join(errs...)
}

func withoutPart(part string) string {
	return fmt.Sprintf("plugin %s.%s is in disabled_plugins, or not in this build", PartType, part)
}
