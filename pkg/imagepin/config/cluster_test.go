package config

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// TestUnusedCluster checks that a section cluster that has no effect is reported.
func TestUnusedCluster(t *testing.T) {
	on := map[string]any{"kubeconfig": "/kubeconfig"}
	for name, c := range map[string]struct {
		section Table
		want    string // part of the reason, empty if the section is used, or not configured
	}{
		"none":             {Table{}, ""},
		"defaults":         {Table{"cluster": map[string]any{"kubeconfig": "", "timeout": "2s"}}, ""},
		"no kubeconfig":    {Table{"version_consistency": "workload", "cluster": map[string]any{"unavailable": "fail"}}, "kubeconfig is not set"},
		"no consistency":   {Table{"cluster": on}, `no version_consistency is "workload"`},
		"node":             {Table{"version_consistency": "node", "cluster": on}, `no version_consistency is "workload"`},
		"workload":         {Table{"version_consistency": "workload", "cluster": on}, ""},
		"a rule":           {Table{"cluster": on, "rules": []any{map[string]any{"match": []string{"**"}, "version_consistency": "workload"}}}, ""},
		"by an annotation": {Table{"cluster": on, "rules": []any{map[string]any{"match": []string{"**"}, "allow_pod_override": true}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := c.section.Check()
			if err != nil {
				t.Fatal(err)
			}
			if got := s.UnusedCluster(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

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
