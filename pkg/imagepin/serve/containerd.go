//go:build unix

package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// containerd is a connection to a containerd, which may come and go.
type containerd struct {
	address string
	conn    *grpc.ClientConn
	client  *client.Client
}

// reconnectWithin bounds how long a connection that was refused is not tried
// again.
const reconnectWithin = time.Second

// dialContainerd connects to a containerd, which need not be there. Without
// tracing the caller's trace is passed on all the same, with its metadata.
func dialContainerd(address string, tracing bool) (*containerd, error) {
	patience := backoff.DefaultConfig
	patience.BaseDelay, patience.MaxDelay = 50*time.Millisecond, reconnectWithin
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: patience, MinConnectTimeout: 5 * time.Second}),
		// containerd's own dialer waits for a socket that there is none of.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", address)
		}),
		unlimited,
	}
	if tracing {
		// What of a call is done in containerd belongs to its trace. What imagepin
		// needs of containerd to answer it is in spans of its own, as in the plugin.
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
			return strings.HasPrefix(info.FullMethodName, criPrefix)
		}))))
	}
	conn, err := grpc.NewClient("passthrough:///containerd", options...)
	if err != nil {
		return nil, fmt.Errorf("containerd's socket: %w", err)
	}
	c, err := client.NewWithConn(conn, client.WithDefaultNamespace(node.Namespace))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &containerd{address: address, conn: conn, client: c}, nil
}

// state is what a running containerd says of itself.
type state struct {
	version      string
	root         string // directory
	content      string // directory of the content; empty where it is not told
	running      config.ReportedConfig
	snapshotters map[string]node.Snapshotter
	verifiers    []string
}

// errRefused is what cannot be mended by waiting for containerd.
var errRefused = errors.New("imagepin does not run beside this containerd")

// look asks a containerd what it is. Its error is errRefused or says that
// containerd is not there or not ready yet.
func (c *containerd) look(ctx context.Context) (*state, error) {
	if err := c.lookAtVersion(ctx); err != nil {
		return nil, err
	}
	loaded, err := c.client.IntrospectionService().Plugins(ctx)
	if err != nil {
		return nil, fmt.Errorf("containerd on %s: %w", c.address, err)
	}
	s := &state{snapshotters: make(map[string]node.Snapshotter)}
	for _, p := range loaded.GetPlugins() {
		if err := s.plugin(p); err != nil {
			return nil, err
		}
	}
	return s, c.lookAtCRI(ctx, s)
}

// ourPlugin is the type of imagepin as a plugin of containerd.
const ourPlugin = "io.containerd.imagepin.v1"

// plugin notes what a plugin of containerd says.
func (s *state) plugin(p *introspection.Plugin) error {
	uri := p.GetType() + "." + p.GetID()
	switch {
	case p.GetType() == ourPlugin:
		return fmt.Errorf("%w: it has imagepin built in (%s): point kubelet at containerd's own socket, or add %q to its disabled_plugins", errRefused, uri, uri)
	case p.GetInitErr() != nil:
		skipped := strings.HasSuffix(p.GetInitErr().GetMessage(), plugin.ErrSkipPlugin.Error())
		if p.GetType() == string(plugins.ImageVerifierPlugin) && !skipped {
			return fmt.Errorf("%w: its image verifier %s failed to load and could have refused: %s", errRefused, uri, p.GetInitErr().GetMessage())
		}
	case p.GetType() == string(plugins.SnapshotPlugin):
		s.snapshotters[p.GetID()] = node.Snapshotter{
			Root: p.GetExports()[plugins.SnapshotterRootDir], Exports: p.GetExports(), Capabilities: p.GetCapabilities(),
		}
	case p.GetType() == string(plugins.ImageVerifierPlugin):
		if p.GetID() != "bindir" {
			return fmt.Errorf("%w: its image verifier %s cannot be asked over its socket", errRefused, uri)
		}
		s.verifiers = append(s.verifiers, p.GetID())
	case uri == contentPlugin:
		s.content = p.GetExports()["root"]
	case uri == config.ImagesSection:
		if path, ok := p.GetExports()["RegistryConfigPath"]; ok {
			s.running.ConfigPath = &path
		}
		if discard, err := strconv.ParseBool(p.GetExports()["DiscardUnpackedLayers"]); err == nil {
			s.running.DiscardUnpackedLayers = &discard
		}
	}
	return nil
}

// criConfig is what is read of the configuration that containerd's CRI gives in
// a verbose Status (internal/cri/config/config.go, whose types are not public).
type criConfig struct {
	Containerd struct {
		DefaultRuntimeName string `json:"defaultRuntimeName"`
		Runtimes           map[string]struct {
			Type                  string         `json:"runtimeType"`
			Snapshotter           string         `json:"snapshotter"`
			DisablePauseImagePull bool           `json:"disablePauseImagePull"`
			Options               map[string]any `json:"options"`
		} `json:"runtimes"`
	} `json:"containerd"`
	ContainerdRootDir string `json:"containerdRootDir"`
}

// lookAtCRI notes what the CRI service says.
func (c *containerd) lookAtCRI(ctx context.Context, s *state) error {
	runtimes := runtime.NewRuntimeServiceClient(c.conn)
	v, err := runtimes.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		return fmt.Errorf("the CRI on %s: %w", c.address, err)
	}
	s.version = v.GetRuntimeVersion()
	status, err := runtimes.Status(ctx, &runtime.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("the CRI on %s: %w", c.address, err)
	}
	var told criConfig
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &told); err != nil || len(told.Containerd.Runtimes) == 0 {
		return fmt.Errorf("%w: its CRI (%s %s) does not tell its configuration in a verbose Status", errRefused, v.GetRuntimeName(), s.version)
	}
	rt := &s.running.Runtime.Containerd
	rt.DefaultRuntimeName = told.Containerd.DefaultRuntimeName
	rt.Runtimes = make(map[string]config.Handler, len(told.Containerd.Runtimes))
	for name, h := range told.Containerd.Runtimes {
		rt.Runtimes[name] = config.Handler{Type: h.Type, Snapshotter: h.Snapshotter, DisablePauseImagePull: h.DisablePauseImagePull, Options: h.Options}
	}
	s.root = told.ContainerdRootDir
	for name, sn := range s.snapshotters {
		if sn.Root == "" {
			sn.Root = filepath.Join(s.root, plugins.SnapshotPlugin.String()+"."+name)
			s.snapshotters[name] = sn
		}
	}
	return c.lookAtFilesystems(ctx, s)
}

// lookAtFilesystems finds the default snapshotter: the first filesystem that the
// CRI names is its.
func (c *containerd) lookAtFilesystems(ctx context.Context, s *state) error {
	info, err := runtime.NewImageServiceClient(c.conn).ImageFsInfo(ctx, &runtime.ImageFsInfoRequest{})
	if err != nil {
		return fmt.Errorf("the CRI on %s: %w", c.address, err)
	}
	if all := info.GetImageFilesystems(); len(all) > 0 {
		var named []string
		for name, sn := range s.snapshotters {
			if sn.Root == all[0].GetFsId().GetMountpoint() {
				named = append(named, name)
			}
		}
		if len(named) == 1 {
			s.running.Snapshotter = named[0]
		}
	}
	return nil
}

// socketRecords is containerd's image store over its socket, where there are no
// transactions: the order of what is written is safe by itself.
type socketRecords struct{ images.Store }

// Atomically implements store.Records.
func (r socketRecords) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r.Store)
}

// services are those of containerd that a node works on.
func (c *containerd) services() node.Containerd {
	records := pagedImages{c.client.ImageService()}
	return node.Containerd{
		Records:    socketRecords{records},
		Pins:       records,
		Content:    socketContent{c.client.ContentStore()},
		Leases:     c.client.LeasesService(),
		Namespaces: c.client.NamespaceService(),
		Events:     eventService{c.client.EventService()},
		Applier:    c.client.DiffService(),
		Snapshots:  c.client.SnapshotService,
	}
}

// imageVerifiers are the image verifier plugins of a containerd.
func (s *state) imageVerifiers(verifier bindir.Config) map[string]imageverifier.ImageVerifier {
	if !slices.Contains(s.verifiers, "bindir") {
		return nil
	}
	return map[string]imageverifier.ImageVerifier{"bindir": bindir.NewImageVerifier(&verifier)}
}

// gone tells whether an error says that containerd is not there or not ready.
func gone(err error) bool {
	return !errors.Is(err, errRefused) && !errdefs.IsInvalidArgument(err)
}

// oneLine keeps an error's text in one line of a status.
func singleLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
