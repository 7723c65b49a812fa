package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
)

// HandlerGate is the feature gate with which kubelet names the handler in image calls.
const HandlerGate = "RuntimeClassInImageCriApi"

// KubeletOptions are the options of a kubelet. The zero value means kubelet's defaults, as far as they work without a
// cluster network.
type KubeletOptions struct {
	// Dir is the directory of kubelet, below the directory of all binaries. Empty means the kubelet of the cluster's own
	// version.
	Dir string
	// Gate is the feature gate [HandlerGate].
	Gate bool
	// Config is added to the kubelet configuration.
	Config map[string]any
	// ConfigDir is a directory of drop-ins, which override everything else.
	ConfigDir string
	// Kubeconfig is a kubeconfig file. Empty means that of the cluster, with all permissions.
	Kubeconfig string
	// Labels are the labels of the node, as KEY=VALUE separated by commas.
	Labels string
}

// Kubelet is a node of the cluster.
type Kubelet struct {
	Name  string
	Proxy *Proxy
	c     *Cluster
	n     *node.Node
	d     *daemon.Daemon
	port  string
}

// StartKubelet adds a containerd to the cluster as a node, with a kubelet that connects to it through a [Proxy]. It
// waits until the node is ready.
func (c *Cluster) StartKubelet(ctx context.Context, name string, n *node.Node, opts KubeletOptions) (*Kubelet, error) {
	k := &Kubelet{Name: name, c: c, n: n}
	// Without a network configuration the node is never ready. It need not work, because pods use the host's network.
	network := []byte(`{"cniVersion":"1.0.0","name":"none","plugins":[{"type":"none"}]}`)
	if err := os.WriteFile(n.Path("cni", "conf", "10-none.conflist"), network, 0o644); err != nil {
		return nil, err
	}
	var err error
	if k.Proxy, err = startProxy(n.Path("proxy.sock"), n.Address()); err != nil {
		return nil, err
	}
	if err := k.Start(ctx, opts); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Start starts kubelet, also after [Kubelet.Stop], and waits until the node is ready.
func (k *Kubelet) Start(ctx context.Context, opts KubeletOptions) error {
	ports, err := k.c.reservePorts(1)
	if err != nil {
		return err
	}
	k.port = ports[0]
	controllers, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		return err
	}
	for _, procs := range append(controllers, "/sys/fs/cgroup/cgroup.procs") {
		if _, err := os.Stat(procs); err != nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(procs)+k.n.Cgroup(), 0o755); err != nil {
			return err
		}
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "port": json.Number(k.port), "healthzPort": 0, "readOnlyPort": 0,
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": "unix://" + k.n.Path("proxy.sock"),
		"cgroupDriver":             "cgroupfs", "cgroupRoot": k.n.Cgroup(), "failCgroupV1": false, "failSwapOn": false,
		"makeIPTablesUtilChains": false, "protectKernelDefaults": true, "resolvConf": "",
		"podLogsDir": k.n.Path("logs", "pods"), "volumePluginDir": k.n.Path("kubelet", "plugins"),
		"enableControllerAttachDetach": false,
		"featureGates":                 map[string]any{HandlerGate: opts.Gate},
		"serializeImagePulls":          false, "maxParallelImagePulls": 4,
		"syncFrequency": "1s", "nodeStatusUpdateFrequency": "1s", "nodeStatusMaxImages": -1,
		// There is no disk pressure, unless a test sets other thresholds.
		"evictionHard": map[string]any{"memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
	}
	maps.Copy(config, opts.Config)
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(k.n.Path("kubelet.json"), b, 0o644); err != nil {
		return err
	}
	args := []string{
		"--config=" + k.n.Path("kubelet.json"), "--kubeconfig=" + cmp.Or(opts.Kubeconfig, k.c.Kubeconfig()), "--root-dir=" + k.n.Path("kubelet"),
		"--cert-dir=" + k.n.Path("kubelet", "certs"), "--hostname-override=" + k.Name,
	}
	if opts.Labels != "" {
		args = append(args, "--node-labels="+opts.Labels)
	}
	if opts.ConfigDir != "" {
		args = append(args, "--config-dir="+opts.ConfigDir)
	}
	binary := Bin("kubelet")
	if opts.Dir != "" {
		binary = filepath.Join(node.BinDir(), opts.Dir, "kubelet")
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = k.n.Path("kubelet")
	if err := os.MkdirAll(filepath.Join(cmd.Dir, filepath.Base(devicePlugins)), 0o755); err != nil {
		return err
	}
	if k.d, err = daemon.Start(cmd, k.LogFile()); err != nil {
		return err
	}
	since := time.Now().Add(-time.Second).Truncate(time.Second)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return k.d.Await(ctx, func(ctx context.Context) error {
		status, err := k.Status(ctx)
		if err != nil {
			return err
		}
		for _, cond := range status.Conditions {
			if cond.Type == core.NodeReady && cond.Status == core.ConditionTrue && !cond.LastHeartbeatTime.Time.Before(since) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", status.Conditions)
	})
}

// LogFile returns the path of kubelet's log.
func (k *Kubelet) LogFile() string { return k.n.Path("kubelet.log") }

// LogTail returns the last lines of kubelet's log.
func (k *Kubelet) LogTail(lines int) string { return k.d.LogTail(lines) }

// Stop stops kubelet. Its pods keep running.
func (k *Kubelet) Stop() error { return k.d.Stop() }

// Close stops kubelet and the proxy, and deletes the node and its pods from the API server. Their containers run until
// the [node.Node] is closed.
func (k *Kubelet) Close() error {
	var err error
	if k.d != nil {
		err = errors.Join(k.d.Kill9(), k.c.forget(k.Name))
	}
	return errors.Join(err, k.Proxy.close())
}

// Status returns the node's status from the API server.
func (k *Kubelet) Status(ctx context.Context) (core.NodeStatus, error) {
	var n core.Node
	err := k.c.Do(ctx, "GET", "/api/v1/nodes/"+k.Name, nil, &n)
	return n.Status, err
}

// Summary reads kubelet's /stats/summary.
func (k *Kubelet) Summary(ctx context.Context, out any) error {
	at := &Client{url: "https://127.0.0.1:" + k.port, http: k.c.http}
	return at.Do(ctx, "GET", "/stats/summary", nil, out)
}

// Log returns what a container of a pod has printed since its nth start, counted from 0. It is empty if kubelet has no
// log.
func (k *Kubelet) Log(p *core.Pod, container string, nth int) (string, error) {
	dir := k.n.Path("logs", "pods", fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID), container)
	b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.log", nth)))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		// In CRI's format: time, stream, P or F, text.
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			text.WriteString(f[3])
		}
	}
	return strings.TrimSpace(text.String()), nil
}
