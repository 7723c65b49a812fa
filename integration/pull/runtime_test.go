package pull

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestRuntimeServicePassesThrough checks forwarded calls, such as events, exec, attach and port forwarding.
func TestRuntimeServicePassesThrough(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	r.MustPull(tag, "")

	version, err := r.Runtime().Version(r.Ctx, &cri.VersionRequest{})
	if err != nil || version.RuntimeName != "containerd" || version.RuntimeApiVersion != "v1" {
		t.Errorf("Version: %v, %v", version, err)
	}
	status, err := r.Runtime().Status(r.Ctx, &cri.StatusRequest{Verbose: true})
	if err != nil || len(status.GetStatus().GetConditions()) == 0 || status.Info["config"] == "" {
		t.Errorf("Status: %v, %v", status, err)
	}

	events, err := r.Runtime().GetContainerEvents(r.Ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pod := r.MustPod("")
	c := r.WantLine(pod, node.ContainerOptions{Image: tag}, opts.Line(0))
	want := []string{
		pod.ID + " " + cri.ContainerEventType_CONTAINER_CREATED_EVENT.String(),
		pod.ID + " " + cri.ContainerEventType_CONTAINER_STARTED_EVENT.String(),
		c.ID + " " + cri.ContainerEventType_CONTAINER_CREATED_EVENT.String(),
		c.ID + " " + cri.ContainerEventType_CONTAINER_STARTED_EVENT.String(),
	}
	for len(want) > 0 {
		e, err := events.Recv()
		if err != nil {
			t.Fatalf("waiting for events %q: %v", want, err)
		}
		if e.ContainerId+" "+e.ContainerEventType.String() == want[0] {
			want = want[1:]
		}
	}

	run, err := r.Runtime().ExecSync(r.Ctx, &cri.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/app", "cat", "/facts"}})
	if err != nil {
		t.Fatal(err)
	}
	facts := images.HostPlatform() + ",v1\n"
	if string(run.Stdout) != facts || run.ExitCode != 0 {
		t.Errorf("ExecSync: %v", run)
	}
	exec, err := r.Runtime().Exec(r.Ctx, &cri.ExecRequest{ContainerId: c.ID, Cmd: []string{"/app", "cat", "/facts"}, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	if out := standardOutput(t, exec.Url); out != facts {
		t.Errorf("exec: got %q, want %q", out, facts)
	}
	attach, err := r.Runtime().Attach(r.Ctx, &cri.AttachRequest{ContainerId: c.ID, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	forward, err := r.Runtime().PortForward(r.Ctx, &cri.PortForwardRequest{PodSandboxId: pod.ID, Port: []int32{80}})
	if err != nil {
		t.Fatal(err)
	}
	for what, address := range map[string]string{"attach": attach.Url, "port forwarding": forward.Url} {
		// Without a protocol upgrade, a known token is rejected. An unknown token is not found.
		res, err := http.Get(address)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusOK {
			t.Errorf("%s at %s: %s", what, address, res.Status)
		}
	}
	stats, err := r.Runtime().ListContainerStats(r.Ctx, &cri.ListContainerStatsRequest{})
	if err != nil || len(stats.Stats) != 1 || stats.Stats[0].Attributes.Id != c.ID {
		t.Errorf("ListContainerStats: %v, %v", stats, err)
	}
	if err := events.CloseSend(); err != nil {
		t.Error(err)
	}
}

// standardOutput reads channel 1 of a CRI streaming URL over a websocket.
func standardOutput(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: aW1hZ2VwaW4taW1hZ2VwaQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n", u.RequestURI(), u.Host)
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %s %s", address, res.Status, b)
	}
	var out strings.Builder
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return out.String()
		}
		size := uint64(head[1] & 0x7f)
		if size == 126 {
			var long [2]byte
			if _, err := io.ReadFull(in, long[:]); err != nil {
				t.Fatal(err)
			}
			size = uint64(binary.BigEndian.Uint16(long[:]))
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(in, frame); err != nil {
			t.Fatal(err)
		}
		const binaryFrame, closeFrame, stdout = 2, 8, 1
		switch opcode := head[0] & 0xf; {
		case opcode == closeFrame:
			return out.String()
		case opcode == binaryFrame && size > 0 && frame[0] == stdout:
			out.Write(frame[1:])
		}
	}
}

// TestTCP checks that CRI on containerd's TCP address, if enabled, is served by imagepin as on the socket.
func TestTCP(t *testing.T) {
	t.Parallel()
	address := testkit.Address(t)
	r := testkit.NewRig(t, node.Options{
		Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
		Extra: fmt.Sprintf("[plugins.\"io.containerd.server.v1.grpc-tcp\"]\naddress = %q\n"+
			"[plugins.\"io.containerd.grpc.v1.cri\"]\ndisable_tcp_service = false\n", address),
	})
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform(), testkit.Foreign)
	host := r.MustPull(tag, "")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service := cri.NewImageServiceClient(conn)
	res, err := service.PullImage(r.Ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: tag, RuntimeHandler: "foreign"}})
	if err != nil {
		t.Fatal(err)
	}
	if res.ImageRef == host || r.MustStatus(tag, "foreign").GetId() != res.ImageRef {
		t.Errorf("pull over TCP: got %s", res.ImageRef)
	}
	pods, err := cri.NewRuntimeServiceClient(conn).ListPodSandbox(r.Ctx, &cri.ListPodSandboxRequest{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("ListPodSandbox over TCP: %v, %v", pods, err)
	}
}
