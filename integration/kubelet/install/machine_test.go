package install

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/machine"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/port"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// worker is the name of the node.
const worker = "worker"

const containerdUnit = `[Unit]
Description=containerd container runtime
[Service]
ExecStart=/usr/bin/containerd --config /etc/containerd/config.toml
Type=notify
Delegate=yes
KillMode=process
Restart=always
LimitNOFILE=infinity
TasksMax=infinity
`

const kubeletUnit = `[Unit]
Description=kubelet
After=containerd.service
[Service]
ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=worker
Restart=always
RestartSec=1
KillMode=process
`

// kubeletConfig is the configuration of a kubelet without a cluster network. Its ports are not in use on the host.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: %s
healthzPort: %s
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
protectKernelDefaults: true
resolvConf: ""
enableControllerAttachDetach: false
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
syncFrequency: 1s
nodeStatusUpdateFrequency: 1s
`

// debian is a machine with systemd that runs stock containerd and a kubelet of a cluster.
type debian struct {
	*machine.Machine
	t    *testing.T
	ctx  context.Context
	kube *cluster.Cluster
	reg  *registry.Registry
}

func newDebian(t *testing.T) *debian {
	t.Helper()
	d := &debian{t: t, ctx: testkit.Context(t), reg: testkit.Registry(t)}
	pause := testkit.PushPause(t, d.reg)
	var err error
	if d.kube, err = cluster.Start(d.ctx, cluster.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.kube.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(d.kube.StartControllers("daemonset-controller"), d.kube.StartScheduler()); err != nil {
		t.Fatal(err)
	}
	d.Machine = machine.Start(t)
	t.Cleanup(d.logFailure)
	for name, from := range map[string]string{
		"containerd": filepath.Join(node.BinDir(), node.Stock), "containerd-shim-runc-v2": filepath.Join(node.BinDir(), "containerd-shim-runc-v2"),
		"ctr": filepath.Join(node.BinDir(), "ctr"), "runc": cluster.Bin("runc"), "kubelet": cluster.Bin("kubelet"),
	} {
		d.CopyFile("/usr/bin/"+name, from, 0o755)
	}
	kubeconfig, err := os.ReadFile(d.kube.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		"/etc/hosts": "127.0.0.1 localhost\n",
		// Without a network configuration the node is never ready. It need not work, because pods use the host's network.
		"/etc/cni/net.d/10-none.conflist":            `{"cniVersion":"1.0.0","name":"none","plugins":[{"type":"none"}]}`,
		"/usr/lib/systemd/system/containerd.service": containerdUnit,
		"/usr/lib/systemd/system/kubelet.service":    kubeletUnit,
		"/etc/kubernetes/kubelet.conf":               string(kubeconfig),
		"/var/lib/kubelet/config.yaml":               fmt.Sprintf(kubeletConfig, freePort(t), freePort(t)),
		"/etc/containerd/config.toml": fmt.Sprintf("version = 3\n[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = %q\n[plugins.\"io.containerd.cri.v1.runtime\"]\n  restrict_oom_score_adj = %t\n",
			pause, node.RestrictsOOMScore()),
	} {
		d.WriteFile(path, content, 0o600)
	}
	// The sysctls have the values that kubelet requires. /proc/sys is read-only in the machine.
	for path, value := range map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"} {
		file := "/run/sysctl/" + filepath.Base(path)
		d.WriteFile(file, value+"\n", 0o644)
		d.Run("mount --bind " + file + " /proc/sys/" + path)
	}
	d.Run("ln -s null /dev/kmsg") // kubelet reads it for kills of the OOM killer
	d.Run("systemctl daemon-reload && systemctl start containerd kubelet")
	d.awaitReady()
	return d
}

// logFailure logs what the machine says of itself if the test has failed.
func (d *debian) logFailure() {
	if d.t.Failed() {
		out, _ := d.Try(context.WithoutCancel(d.ctx), `tail -n 20 /run/imagepin-install/log /var/log/pods/*/*/*.log || true
			journalctl --no-pager --output cat --lines 60 --unit kubelet --unit containerd --unit imagepin --unit imagepin-install`)
		d.t.Log(out)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	p, err := port.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.Port()
}

// awaitReady waits until the node is ready.
func (d *debian) awaitReady() {
	d.t.Helper()
	testkit.EventuallyIn(d.t, timeout, "the node is ready", func(ctx context.Context) (bool, error) {
		var n core.Node
		if err := d.kube.Do(ctx, "GET", "/api/v1/nodes/"+worker, nil, &n); err != nil {
			return false, nil
		}
		for _, c := range n.Status.Conditions {
			if c.Type == core.NodeReady {
				return c.Status == core.ConditionTrue, nil
			}
		}
		return false, nil
	})
}

// nodeImage returns the image that "make image" has built.
func nodeImage(t *testing.T) v1.ImageIndex {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(node.BinDir(), "..", "dist", "image", "imagepin-node-*.oci.tar"))
	if err != nil || len(files) != 1 {
		t.Fatalf("got node images %q (%v), want one: run make image", files, err)
	}
	dir := t.TempDir()
	extract(t, files[0], dir)
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("got index %v (%v), want one manifest", manifest, err)
	}
	image, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func extract(t *testing.T, file, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err == nil {
			err = root.MkdirAll(filepath.Dir(h.Name), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		to, err := root.Create(h.Name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(to, r)
		if err := errors.Join(err, to.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
