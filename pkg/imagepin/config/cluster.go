package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// ClusterConfig is the section for pins in the Kubernetes API:
//
//	[plugins."io.containerd.imagepin.v1.images".cluster]
type ClusterConfig struct {
	// Kubeconfig is the file with the API server and the credential of the node, for example kubelet's. If it is empty, the
	// node does not use the Kubernetes API. The file is read when it is needed first, and may appear later.
	Kubeconfig string `toml:"kubeconfig"`

	// Unavailable is what happens to a pod whose pin the node does not know while the API server does not answer: "local"
	// pins the image on the node and claims the pin later, "fail" fails the pull.
	Unavailable string `toml:"unavailable"`

	// Timeout is how long a call waits for the API server. The minimum is 100ms.
	Timeout string `toml:"timeout"`

	// Recheck is how long the node uses a pin that it has read before it reads the pin again; "0s" reads it for every
	// container.
	Recheck string `toml:"recheck"`
}

// The values of ClusterConfig.Unavailable.
const (
	unavailableLocal = "local"
	unavailableFail  = "fail"
)

const (
	minClusterTimeout = 100 * time.Millisecond
	maxClusterTimeout = time.Minute
)

// Cluster is a ClusterConfig that has been checked. It is comparable.
type Cluster struct {
	Kubeconfig string // absolute; empty if the node does not use the Kubernetes API
	// Strict reports that a pod fails whose pin is not known while the API server does not answer.
	Strict  bool
	Timeout time.Duration
	Recheck time.Duration
}

func defaultCluster() ClusterConfig {
	return ClusterConfig{Unavailable: unavailableLocal, Timeout: (2 * time.Second).String(), Recheck: time.Minute.String()}
}

// UnusedCluster returns why the section cluster has no effect, although it is configured. Otherwise it returns "".
func (s Settings) UnusedCluster() string {
	unset, _ := defaultCluster().check()
	switch {
	case s.Cluster.Kubeconfig == "" && s.Cluster != unset:
		return fmt.Sprintf("[plugins.%q.cluster] has no effect: kubeconfig is not set", Section)
	case s.Cluster.Kubeconfig != "" && !s.Policy.MayPinWorkloads():
		return fmt.Sprintf("[plugins.%q.cluster] has no effect: no version_consistency is %q", Section, policy.Workload)
	}
	return ""
}

// check validates the values. It returns the errors of all keys.
func (c ClusterConfig) check() (Cluster, error) {
	var errs []error
	wrong := func(key string, err error) {
		if err != nil {
			errs = append(errs, keyError("cluster."+key, err))
		}
	}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		wrong("kubeconfig", fmt.Errorf("%q is not an absolute path", c.Kubeconfig))
	}
	if !slices.Contains([]string{unavailableLocal, unavailableFail}, c.Unavailable) {
		wrong("unavailable", fmt.Errorf("%q: must be one of %q, %q", c.Unavailable, unavailableLocal, unavailableFail))
	}
	timeout, err := time.ParseDuration(c.Timeout)
	if err == nil && (timeout < minClusterTimeout || timeout > maxClusterTimeout) {
		err = fmt.Errorf("%s is not between %s and %s", timeout, minClusterTimeout, maxClusterTimeout)
	}
	wrong("timeout", err)
	recheck, err := time.ParseDuration(c.Recheck)
	if err == nil && recheck < 0 {
		err = fmt.Errorf("%s is less than 0s", recheck)
	}
	wrong("recheck", err)
	if len(errs) > 0 {
		return Cluster{}, errors.Join(errs...)
	}
	return Cluster{Kubeconfig: c.Kubeconfig, Strict: c.Unavailable == unavailableFail, Timeout: timeout, Recheck: recheck}, nil
}
