package command

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/introspection/v1"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
)

// plugins is containerd's introspection service with the errors of plugins by type and ID.
type plugins struct {
	introspection.UnimplementedIntrospectionServer
	all []*introspection.Plugin
}

func (p *plugins) Plugins(context.Context, *introspection.PluginsRequest) (*introspection.PluginsResponse, error) {
	return &introspection.PluginsResponse{Plugins: p.all}, nil
}

// TestWhyContainerdDoesNotServeImagepin prints the error of the plugin that failed to load.
func TestWhyContainerdDoesNotServeImagepin(t *testing.T) {
	plugin := func(kind, id, failed string) *introspection.Plugin {
		p := &introspection.Plugin{Type: kind, ID: id}
		if failed != "" {
			p.InitErr = &status.Status{Message: failed}
		}
		return p
	}
	const own, grpcType, broken = "io.containerd.imagepin.v1", "io.containerd.grpc.v1", `unknown key "pull_behaviour"`
	for name, test := range map[string]struct {
		all  []*introspection.Plugin
		want string
	}{
		"failed": {
			[]*introspection.Plugin{plugin(own, "images", "imagepin: "+broken), plugin(grpcType, "cri", "not serving the CRI")},
			"imagepin failed to load in containerd at %: " + broken + "\nCorrect this and restart containerd. To check its configuration, run: imagepin config check /etc/containerd/config.toml",
		},
		"the CRI failed": {
			[]*introspection.Plugin{plugin(own, "images", ""), plugin(grpcType, "cri", "no CNI")},
			"the CRI failed to load in containerd at %: no CNI\nCorrect this and restart containerd.",
		},
		"no CRI": {
			[]*introspection.Plugin{plugin(own, "images", "")},
			"containerd at % does not serve imagepin: the plugin io.containerd.grpc.v1.cri is missing or disabled",
		},
		"missing": {
			[]*introspection.Plugin{plugin(grpcType, "cri", "")},
			"containerd at % does not serve imagepin: the plugin io.containerd.imagepin.v1.images is missing or disabled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := serve(t, func(s *grpc.Server) { introspection.RegisterIntrospectionServer(s, &plugins{all: test.all}) })
			failed(t, runAt(t, address, nil, "images"), string(bytes.ReplaceAll([]byte(test.want), []byte("%"), []byte(address))))
		})
	}
}

// TestHintOfImagepinServe names the socket of imagepin serve if the node has one.
func TestHintOfImagepinServe(t *testing.T) {
	_, serveSocket := listen(t)
	dir := t.TempDir()
	images := func(address, serveSocket string) result {
		var out, errOut bytes.Buffer
		a := &app{Stdio: Stdio{Out: &out, Err: &errOut}, serveSocket: serveSocket}
		return result{a.run(t.Context(), []string{"imagepin", "--address", address, "images"}), out.String(), errOut.String()}
	}
	const startServe, startContainerd = "\nStart imagepin serve: systemctl start imagepin", "\nStart containerd: systemctl start containerd"
	hasServe := "\nThis node has a socket of imagepin serve: add --address " + serveSocket
	for _, test := range []struct{ socket, server, serve, hint string }{
		{"containerd.sock", "containerd", serveSocket, startContainerd + hasServe},
		{"containerd.sock", "containerd", "/none", startContainerd},
		{"imagepin.sock", "imagepin serve", serveSocket, startServe},
		{"absent.sock", "containerd or imagepin serve", serveSocket, startServe + startContainerd + hasServe},
		{"absent.sock", "imagepin serve", filepath.Join(dir, "absent.sock"), startServe},
	} {
		address := filepath.Join(dir, test.socket)
		failed(t, images(address, test.serve), "cannot connect to "+test.server+": dial unix "+address+": connect: no such file or directory"+test.hint)
	}
	_, stock := serve(t, func(s *grpc.Server) { introspection.RegisterIntrospectionServer(s, &plugins{}) })
	failed(t, images(stock, serveSocket),
		"containerd at "+stock+" does not serve imagepin: the plugin io.containerd.imagepin.v1.images is missing or disabled\nThis node has a socket of imagepin serve: add --address "+serveSocket)
}

// TestHintOfPermission names who may connect to a socket.
func TestHintOfPermission(t *testing.T) {
	l, address := listen(t)
	defer l.Close()
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}
	hint := func(mode fs.FileMode, group int) string {
		if err := os.Chown(address, -1, group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(address, mode); err != nil {
			t.Fatal(err)
		}
		return (&app{}).connectHint(denied, address)
	}
	const other = 65123
	name := strconv.Itoa(other)
	if g, err := user.LookupGroupId(name); err == nil {
		name = g.Name
	}
	for _, test := range []struct {
		mode  fs.FileMode
		group int
		want  string
	}{
		{0o660, 0, "\nRun imagepin as root."}, {0o600, other, "\nRun imagepin as root."},
		{0o660, other, "\nRun imagepin as root, or as a member of the group " + name + "."},
	} {
		if got := hint(test.mode, test.group); got != test.want {
			t.Errorf("mode %o, group %d: got %q, want %q", test.mode, test.group, got, test.want)
		}
	}
}
