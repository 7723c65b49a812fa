package config

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestCluster(t *testing.T) {
	off, err := Table{}.Check()
	if want := (Cluster{Timeout: 2 * time.Second, Recheck: time.Minute}); err != nil || off.Cluster != want {
		t.Errorf("defaults: got %+v, %v, want %+v", off.Cluster, err, want)
	}
	on, err := Table{"cluster": map[string]any{
		"kubeconfig": "/var/lib/kubelet/kubeconfig", "unavailable": "fail", "timeout": "5s", "recheck": "0s",
	}}.Check()
	if want := (Cluster{Kubeconfig: "/var/lib/kubelet/kubeconfig", Strict: true, Timeout: 5 * time.Second}); err != nil || on.Cluster != want {
		t.Errorf("got %+v, %v, want %+v", on.Cluster, err, want)
	}
	for key, value := range map[string]string{
		"kubeconfig": "kubelet/kubeconfig", "unavailable": "ignore", "timeout": "1ms", "recheck": "-1s", "server": "https://api.example",
	} {
		_, err := Table{"cluster": map[string]any{key: value}}.Check()
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "cluster."+key) {
			t.Errorf("%s = %q: got %v, want an InvalidArgument error that names cluster.%s", key, value, err, key)
		}
	}
}
