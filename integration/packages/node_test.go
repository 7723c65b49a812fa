package packages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/machine"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// repository is the path of the repository from the directory of this package.
const repository = "../.."

// dist returns the directory of the packages that `make packages` built.
func dist() string {
	if d := os.Getenv("IMAGEPIN_DIST"); d != "" {
		return d
	}
	return filepath.Join(repository, "dist")
}

// packaged returns the path of the one package that matches a pattern. {arch} in the pattern is this architecture.
func packaged(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dist(), strings.ReplaceAll(pattern, "{arch}", runtime.GOARCH)))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages %s: %q, %v; run `make packages`", pattern, found, err)
	}
	return found[0]
}

// containerdUnit is like the unit of distributions and of containerd's documentation.
const containerdUnit = `[Unit]
Description=containerd container runtime
After=network.target local-fs.target

[Service]
ExecStart=/usr/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
LimitNPROC=infinity
LimitNOFILE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`

// stockNode is a machine that runs stock containerd as a service, with a registry.
type stockNode struct {
	*machine.Machine
	t   *testing.T
	ctx context.Context
	reg *registry.Registry
}

func newStockNode(t *testing.T) *stockNode {
	t.Helper()
	n := &stockNode{t: t, ctx: testkit.Context(t), reg: testkit.Registry(t)}
	pause := testkit.PushPause(t, n.reg)
	n.Machine = machine.Start(t)
	for name, from := range map[string]string{"containerd": node.Stock, "containerd-shim-runc-v2": "", "ctr": "", "runc": ""} {
		if from == "" {
			from = name
		}
		n.CopyFile("/usr/bin/"+name, filepath.Join(node.BinDir(), from), 0o755)
	}
	n.WriteFile("/etc/hosts", "127.0.0.1 localhost\n", 0o644)
	n.WriteFile("/usr/lib/systemd/system/containerd.service", containerdUnit, 0o644)
	n.WriteFile("/etc/containerd/config.toml", fmt.Sprintf(`version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = %t
`, pause, node.RestrictsOOMScore()), 0o644)
	n.Run("systemctl daemon-reload && systemctl enable --now --quiet containerd")
	return n
}

// push pushes an image to the registry and returns its reference.
func (n *stockNode) push(name string) string {
	n.t.Helper()
	testkit.Push(n.t, n.reg, name, testkit.AppIndex(n.t, images.Options{Version: "v1"}, images.HostPlatform()))
	return n.reg.Ref(name)
}

// install copies packages into the machine, installs them and returns the output.
func (n *stockNode) install(debs ...string) string {
	n.t.Helper()
	var names []string
	for _, d := range debs {
		n.CopyFile("/tmp/"+filepath.Base(d), d, 0o644)
		names = append(names, "/tmp/"+filepath.Base(d))
	}
	return n.Run("dpkg --install " + strings.Join(names, " "))
}

// dial connects to a CRI socket in the machine.
func (n *stockNode) dial(socket string) *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+n.Socket(socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

// pod is a sandbox with a running container.
type pod struct{ sandbox, container string }

// runPod pulls an image and runs a container of it, through a CRI socket of the machine.
func (n *stockNode) runPod(socket, name, ref string) pod {
	n.t.Helper()
	conn := n.dial(socket)
	rt, im := cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/pods",
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}},
		},
	}
	sandbox, err := rt.RunPodSandbox(n.ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.t.Fatalf("RunPodSandbox: %v", err)
	}
	pulled, err := im.PullImage(n.ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, SandboxConfig: config})
	if err != nil {
		n.t.Fatalf("PullImage: %v", err)
	}
	container, err := rt.CreateContainer(n.ctx, &cri.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "app"}, Image: &cri.ImageSpec{Image: pulled.ImageRef, UserSpecifiedImage: ref}},
	})
	if err != nil {
		n.t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := rt.StartContainer(n.ctx, &cri.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		n.t.Fatalf("StartContainer: %v", err)
	}
	p := pod{sandbox: sandbox.PodSandboxId, container: container.ContainerId}
	n.wantRunning(socket, p)
	return p
}

// wantRunning fails the test unless the pod's container is running. Like kubelet, it retries while the service starts.
func (n *stockNode) wantRunning(socket string, p pod) {
	n.t.Helper()
	rt := cri.NewRuntimeServiceClient(n.dial(socket))
	testkit.Eventually(n.t, socket+" reports that the container runs", func(ctx context.Context) (bool, error) {
		s, err := rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.container})
		if status.Code(err) == codes.Unavailable {
			return false, nil
		}
		if err == nil && s.Status.State != cri.ContainerState_CONTAINER_RUNNING {
			log, _ := n.Try(n.ctx, "journalctl --no-pager --output cat --unit containerd | grep -E 'level=(warning|error)' | tail -20")
			err = fmt.Errorf("the container is %s\n%s", s.Status.State, log)
		}
		return err == nil, err
	})
}

func (n *stockNode) removePod(socket string, p pod) {
	n.t.Helper()
	rt := cri.NewRuntimeServiceClient(n.dial(socket))
	if _, err := rt.StopPodSandbox(n.ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		n.t.Fatalf("StopPodSandbox: %v", err)
	}
	if _, err := rt.RemovePodSandbox(n.ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		n.t.Fatalf("RemovePodSandbox: %v", err)
	}
}

// files returns the files and the units of the machine, with modes and owners. It leaves out pseudo filesystems,
// temporary files, logs, containerd's data, and the databases of dpkg and systemd.
func (n *stockNode) files() map[string]string {
	n.t.Helper()
	out := n.Run(`find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/tmp -o -path /run -o -path /var/log \
		-o -path /var/lib/containerd -o -path /var/lib/dpkg -o -path /var/cache/debconf -o -path /var/lib/systemd -o -path /root \) -prune -o -printf '%M %u %g %p\n'
		find /run -mindepth 1 -maxdepth 1 -printf '%M %u %g %p\n'
		find /run/systemd/system -printf '%M %u %g %p\n'
		systemctl list-unit-files --no-legend --no-pager | sed 's/^/unit /'`)
	m := make(map[string]string)
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		name := line[strings.LastIndexByte(line, ' ')+1:]
		if strings.HasPrefix(line, "unit ") {
			name = strings.Fields(line)[1]
		}
		m[name] = line
	}
	return m
}

// difference returns the differences of two listings.
func difference(before, after map[string]string) []string {
	var diff []string
	for name, line := range after {
		if before[name] == "" {
			diff = append(diff, "left: "+line)
		} else if before[name] != line {
			diff = append(diff, "was "+before[name]+", is "+line)
		}
	}
	for name, line := range before {
		if after[name] == "" {
			diff = append(diff, "gone: "+line)
		}
	}
	return diff
}
