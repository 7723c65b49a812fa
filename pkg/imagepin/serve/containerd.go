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

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
	"github.com/imagepin/imagepin/pkg/imagepin/verifier"
)

// containerd is a connection to a containerd, which may stop and start again.
type containerd struct {
	address string
	conn    *grpc.ClientConn
	client  *client.Client
}

// reconnectWithin is the maximum delay between two attempts to connect.
const reconnectWithin = time.Second

// dialContainerd creates a connection to a containerd, which need not be running. Without tracing, the caller's trace
// is still forwarded with the metadata of the call.
func dialContainerd(address string, tracing bool) (*containerd, error) {
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 50*time.Millisecond, reconnectWithin
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		// containerd's own dialer waits until the socket exists.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", address)
		}),
		unlimited,
	}
	if tracing {
		// Forwarded CRI calls are part of the caller's trace. imagepin's own calls to containerd are in its own spans,
		// as in the plugin.
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

// state is what a running containerd reports about itself.
type state struct {
	version      string
	root         string // directory
	content      string // directory of the content store; empty if not reported
	running      config.ReportedConfig
	snapshotters map[string]node.Snapshotter
	verifiers    []string
}

// errIncompatible means that waiting for containerd does not help.
var errIncompatible = errors.New("imagepin cannot run with this containerd")

// probe reads the state of containerd. It fails with errIncompatible, or with an error for which isUnavailable is true.
func (c *containerd) probe(ctx context.Context) (*state, error) {
	if err := c.checkVersion(ctx); err != nil {
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
	return s, c.probeCRI(ctx, s)
}

// pluginType is the type of imagepin as a plugin of containerd.
const pluginType = "io.containerd.imagepin.v1"

// plugin adds a plugin of containerd to the state.
func (s *state) plugin(p *introspection.Plugin) error {
	uri := p.GetType() + "." + p.GetID()
	switch {
	case p.GetType() == pluginType:
		return fmt.Errorf("%w: it has imagepin built in (%s): point kubelet at containerd's own socket, or add %q to its disabled_plugins", errIncompatible, uri, uri)
	case p.GetInitErr() != nil:
		skipped := strings.HasSuffix(p.GetInitErr().GetMessage(), plugin.ErrSkipPlugin.Error())
		if p.GetType() == string(plugins.ImageVerifierPlugin) && !skipped {
			return fmt.Errorf("%w: its image verifier %s failed to load, and its checks must not be skipped: %s", errIncompatible, uri, p.GetInitErr().GetMessage())
		}
	case p.GetType() == string(plugins.SnapshotPlugin):
		s.snapshotters[p.GetID()] = node.Snapshotter{
			Root: p.GetExports()[plugins.SnapshotterRootDir], Exports: p.GetExports(), Capabilities: p.GetCapabilities(),
		}
	case p.GetType() == string(plugins.ImageVerifierPlugin):
		if p.GetID() != "bindir" {
			return fmt.Errorf("%w: its image verifier %s cannot be called over containerd's socket", errIncompatible, uri)
		}
		s.verifiers = append(s.verifiers, p.GetID())
	case uri == plugins.ContentPlugin.String()+".content":
		s.content = p.GetExports()["root"]
	case uri == config.ImagesSection:
		if path, ok := p.GetExports()[upstream.RegistryConfigPath]; ok {
			s.running.ConfigPath = &path
		}
		if discard, err := strconv.ParseBool(p.GetExports()[upstream.DiscardUnpackedLayers]); err == nil {
			s.running.DiscardUnpackedLayers = &discard
		}
	}
	return nil
}

// criConfig is the part of the configuration in a verbose Status of containerd's CRI that imagepin uses
// (internal/cri/config/config.go, whose types are not public).
type criConfig struct {
	config.Runtime
	ContainerdRootDir string `json:"containerdRootDir"`
}

// probeCRI adds what the CRI service reports to the state.
func (c *containerd) probeCRI(ctx context.Context, s *state) error {
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
	var reported criConfig
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &reported); err != nil || len(reported.Containerd.Runtimes) == 0 {
		return fmt.Errorf("%w: its CRI (%s %s) does not report its configuration in a verbose Status", errIncompatible, v.GetRuntimeName(), s.version)
	}
	s.running.Runtime = reported.Runtime
	s.root = reported.ContainerdRootDir
	for name, sn := range s.snapshotters {
		if sn.Root == "" {
			sn.Root = filepath.Join(s.root, plugins.SnapshotPlugin.String()+"."+name)
			s.snapshotters[name] = sn
		}
	}
	return c.probeFilesystems(ctx, s)
}

// probeFilesystems finds the default snapshotter: the first filesystem that the CRI reports is the filesystem of the
// default snapshotter.
func (c *containerd) probeFilesystems(ctx context.Context, s *state) error {
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

// socketRecords is containerd's image store over its socket, which has no transactions. The callers write in an order
// that is safe without them.
type socketRecords struct{ images.Store }

// Atomically implements store.Records.
func (r socketRecords) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r.Store)
}

// adoptAtATime is how many images are recorded at a time at the first start. containerd makes one write after the other; the calls
// before and after it are made meanwhile.
const adoptAtATime = 8

// services returns the services of containerd that a node uses.
func (c *containerd) services() node.Containerd {
	records := pagedImages{c.client.ImageService()}
	return node.Uninterrupted(node.Containerd{
		Records:    socketRecords{records},
		Pins:       records,
		Content:    socketContent{c.client.ContentStore()},
		Leases:     c.client.LeasesService(),
		Namespaces: c.client.NamespaceService(),
		Events:     eventService{c.client.EventService()},
		Applier:    c.client.DiffService(),
		Snapshots:  c.client.SnapshotService,

		AdoptAtATime: adoptAtATime,
	})
}

// imageVerifiers returns the image verifier plugins of a containerd.
func (s *state) imageVerifiers(c bindir.Config) map[string]imageverifier.ImageVerifier {
	if !slices.Contains(s.verifiers, "bindir") {
		return nil
	}
	return map[string]imageverifier.ImageVerifier{"bindir": verifier.NewBinDir(bindir.NewImageVerifier(&c), c)}
}

// isUnavailable reports whether an error means that containerd is not running or not ready.
func isUnavailable(err error) bool {
	return !errors.Is(err, errIncompatible) && !errdefs.IsInvalidArgument(err)
}

// singleLine returns the text of an error as one line, for a status.
func singleLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
