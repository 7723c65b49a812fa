package peers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/peers/results"
)

// with is the containerd of a job.
type with string

const (
	withStock  with = "stock"
	withPlugin with = "plugin"
	withServe  with = "serve"
)

// suite is a suite of tests of a peer.
type suite struct {
	name string
	with []with
	// run runs the tests, and writes their output to the file output.
	run func(ctx context.Context, j job, bin string) error
	// outcomes reads the outcomes of the tests from the directory of a job.
	outcomes func(dir string) (results.Outcomes, error)
	// tests is the pattern of the tests that run. Empty means all.
	tests string
	// image is the pattern of the tests about images that are enough for each change. Empty means none.
	image string
}

// suites are in the order of the table in RELEASES.md.
var suites = []suite{
	{
		name: "cri", with: []with{withStock, withPlugin, withServe}, run: runCRI, outcomes: goOutcomes,
		image: "^Test(Containerd(Image|SandboxImage)|ContainerLifecycleWithoutImageRef|ImageFSInfo|ImageVolume(Basic|Reusable)|RuntimeHandler$|TruncIndex|Volume)",
	},
	{
		name: "client", with: []with{withStock, withPlugin}, run: runClient, outcomes: goOutcomes,
		tests: "^Test(Content|Convert|Export|Image|Import|Lease|Pull|Snapshotter|Transfer)",
	},
	{name: "critest", with: []with{withStock, withPlugin, withServe}, run: runCritest, outcomes: junitOutcomes},
}

func goOutcomes(dir string) (results.Outcomes, error) {
	output, err := os.ReadFile(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	return results.ParseGo(string(output))
}

func junitOutcomes(dir string) (results.Outcomes, error) {
	report, err := os.ReadFile(filepath.Join(dir, "report.xml"))
	if err != nil {
		return nil, err
	}
	return results.ParseJUnit(report)
}

// criConfig is what containerd's script/test/utils.sh configures for its CRI tests.
const criConfig = `
[plugins."io.containerd.cri.v1.runtime"]
drain_exec_sync_io_timeout = "10s"
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc-fp]
runtime_type = "runc-fp.v1"
cni_conf_dir = "/etc/cni/failpoint"
cni_max_conf_num = 1
pod_annotations = ["io.containerd.runtime.v2.shim.failpoint.*"]
[plugins."io.containerd.snapshotter.v1.overlayfs"]
slow_chown = true
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "/var/run/nri-test.sock"
plugin_path = "/no/pre-launched/nri/plugins"
[plugins."io.containerd.shim.v1.manager"]
socket_dir = "/run/containerd/s"
`

// network is the CNI configuration of a bridge. There is no masquerading, which needs iptables.
const network = `{"cniVersion": "1.0.0", "name": %q, "plugins": [{
	"type": %q, "bridge": %q, "isGateway": true, "ipMasq": false, "promiscMode": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.%d.0/24"}], [{"subnet": "2001:4860:4860:%d::/80"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
	"capabilities": {"io.kubernetes.cri.pod-annotations": true}
}]}
`

// cri starts containerd with the configuration of its CRI tests, and returns the address of the CRI.
func (j job) cri(ctx context.Context, bin string) (string, error) {
	for dir, conf := range map[string]string{
		"/etc/cni/net.d":     fmt.Sprintf(network, "peers", "bridge", "cni0", 0, 0),
		"/etc/cni/failpoint": fmt.Sprintf(network, "peers-failpoint", "cni-bridge-fp", "cni-fp", 1, 1),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, "10-peers.conflist"), []byte(conf), 0o644); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll("/opt/cni", 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink(j.peer("cni"), "/opt/cni/bin"); err != nil {
		return "", err
	}
	return j.containerd(ctx, bin, node.Options{SandboxImage: "registry.k8s.io/pause:3.10.2", Extra: criConfig})
}

// command runs a program of a suite. Its output is in the file output.
func command(ctx context.Context, program string, args ...string) error {
	out, err := os.Create(filepath.Join(root, "output"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, os.TempDir()
	return cmd.Run()
}

// goTests are the arguments for a test binary of Go.
func (j job) goTests() []string {
	args := []string{"-test.v", "-test.timeout=40m"}
	if j.Run != "" {
		args = append(args, "-test.run="+j.Run)
	}
	if j.Skip != "" {
		args = append(args, "-test.skip="+j.Skip)
	}
	return args
}

// runCRI runs containerd's tests of its CRI.
func runCRI(ctx context.Context, j job, bin string) error {
	address, err := j.cri(ctx, bin)
	if err != nil {
		return err
	}
	// The digest of the busybox for which there is a stand-in.
	list := filepath.Join(root, "images.toml")
	if err := os.WriteFile(list, []byte("busyboxbydigest = \"ghcr.io/containerd/busybox:1.36\"\n"), 0o644); err != nil {
		return err
	}
	program, args := j.peer("cri.test"), append(j.goTests(), "-cri-endpoint=unix://"+containerdAddress, "-containerd-bin=containerd",
		"-build-dir="+bin, "-image-list="+list)
	if address != containerdAddress {
		// The tests have one address for both APIs, and derive those of shims from it. So they see the combined socket at
		// containerd's address.
		dir, err := combined(address)
		if err != nil {
			return err
		}
		const mounted = `mount --bind "$0" "$1" && shift && exec "$@"`
		args = append([]string{"--mount", "--propagation=unchanged", "/bin/sh", "-c", mounted, dir, filepath.Dir(containerdAddress), program}, args...)
		program = "unshare"
	}
	return command(ctx, program, args...)
}

// runClient runs containerd's tests of its client about images. They start containerd.
func runClient(ctx context.Context, j job, _ string) error {
	return command(ctx, j.peer("client.test"), append(j.goTests(), "-test.root")...)
}

// runCritest runs critest.
func runCritest(ctx context.Context, j job, bin string) error {
	address, err := j.cri(ctx, bin)
	if err != nil {
		return err
	}
	args := []string{
		"-runtime-endpoint=unix://" + address, "-image-endpoint=unix://" + address, "-ginkgo.junit-report=" + filepath.Join(root, "report.xml"),
		"-ginkgo.no-color", "-ginkgo.timeout=40m", "-test.timeout=45m",
	}
	if j.Run != "" {
		args = append(args, "-ginkgo.focus="+j.Run)
	}
	if j.Skip != "" {
		args = append(args, "-ginkgo.skip="+j.Skip)
	}
	return command(ctx, j.peer("critest"), args...)
}
