package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestCheckParts names the key and the plugin of each part that a node does not have and that is configured.
func TestCheckParts(t *testing.T) {
	none, all := func(string) bool { return false }, func(string) bool { return true }
	if err := (Settings{LocksDirectory: defaultLocksDirectory, BundlesDirectory: defaultBundlesDirectory}).CheckParts(none); err != nil {
		t.Errorf("with the defaults: %v", err)
	}
	for key, s := range map[string]Settings{
		"cluster.kubeconfig": {Cluster: Cluster{Kubeconfig: "/etc/kubernetes/kubelet.conf"}},
		"locks_directory":    {LocksDirectory: "/srv/locks"},
		"bundles_directory":  {BundlesDirectory: "/srv/bundles"},
	} {
		err := s.CheckParts(none)
		var of *KeyError
		if !errors.As(err, &of) || of.Key != key || !strings.Contains(err.Error(), PartType+".") || !errdefs.IsInvalidArgument(err) {
			t.Errorf("got %v, want an error for %s with the plugin", err, key)
		}
		if err := s.CheckParts(all); err != nil {
			t.Errorf("%s: got %v for a node with all parts", key, err)
		}
	}
}
