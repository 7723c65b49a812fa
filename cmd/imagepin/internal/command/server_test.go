package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const (
	appRef       = "registry.example.com/shop/app:v1"
	digestOld    = "sha256:1111111111111111aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestNew    = "sha256:2222222222222222bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	manifestD    = "sha256:3333333333333333cccccccccccccccccccccccccccccccccccccccccccccccc"
	imageID      = "sha256:4444444444444444dddddddddddddddddddddddddddddddddddddddddddddddd"
	chainID      = "sha256:5555555555555555eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
	layerD       = "sha256:6666666666666666ffffffffffffffffffffffffffffffffffffffffffffffff"
	indexType    = "application/vnd.oci.image.index.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
	workload     = "workload/shop/pod-template-hash=7d4b9c"
	registryHost = "registry.example.com"
	hostPlatform = "linux/amd64"
)

// testNow is the current time in the tests.
var testNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(-d)) }

// control is a server that returns recorded responses and stores the last request.
type control struct {
	api.UnimplementedControlServer
	images    *api.ImagesResponse
	inspect   *api.InspectResponse
	resolve   *api.ResolveResponse
	pull      []*api.PullResponse
	pins      *api.PinsResponse
	checked   *api.PinsResponse
	setPin    *api.SetPinResponse
	removePin *api.RemovePinResponse
	refresh   *api.RefreshResponse
	check     *api.CheckResponse
	deep      []*api.DeepCheckResponse // all except the last
	uninstall *api.UninstallResponse
	usage     *api.DiskUsageResponse
	events    []*api.Event
	diff      *api.DiffResponse
	apply     []*api.ApplyResponse // of Apply and Rollback
	lock      *api.LockStatusResponse
	unlock    *api.RemoveLockResponse
	ps        *api.ContainersResponse
	err       error                 // of every call; Pull returns it after its messages
	during    func(context.Context) // called during a call

	request   proto.Message
	namespace []string
}

func (c *control) answer(ctx context.Context, request proto.Message) error {
	c.request = request
	md, _ := metadata.FromIncomingContext(ctx)
	c.namespace = md.Get("containerd-namespace")
	if c.during != nil {
		c.during(ctx)
	}
	return c.err
}

func (c *control) StreamImages(r *api.ImagesRequest, stream grpc.ServerStreamingServer[api.ImagesResponse]) error {
	for _, k := range c.images.GetKeys() {
		if err := stream.Send(&api.ImagesResponse{Keys: []*api.Key{k}}); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

func (c *control) Inspect(ctx context.Context, r *api.InspectRequest) (*api.InspectResponse, error) {
	return c.inspect, c.answer(ctx, r)
}

func (c *control) Resolve(ctx context.Context, r *api.ResolveRequest) (*api.ResolveResponse, error) {
	return c.resolve, c.answer(ctx, r)
}

func (c *control) Pull(r *api.PullRequest, stream grpc.ServerStreamingServer[api.PullResponse]) error {
	for _, message := range c.pull {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

func (c *control) StreamPins(r *api.PinsRequest, stream grpc.ServerStreamingServer[api.PinsResponse]) error {
	for _, p := range c.pins.GetPins() {
		if err := stream.Send(&api.PinsResponse{Pins: []*api.Pin{p}}); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

// CheckPins also says what the registries of the pins have answered.
func (c *control) CheckPins(r *api.PinsRequest, stream grpc.ServerStreamingServer[api.PinsResponse]) error {
	if err := c.answer(stream.Context(), r); err != nil {
		return err
	}
	return stream.Send(c.checked)
}

func (c *control) SetPin(ctx context.Context, r *api.SetPinRequest) (*api.SetPinResponse, error) {
	return c.setPin, c.answer(ctx, r)
}

func (c *control) UndoPin(ctx context.Context, r *api.UndoPinRequest) (*api.SetPinResponse, error) {
	return c.setPin, c.answer(ctx, r)
}

func (c *control) RemovePin(ctx context.Context, r *api.RemovePinRequest) (*api.RemovePinResponse, error) {
	return c.removePin, c.answer(ctx, r)
}

func (c *control) Refresh(ctx context.Context, r *api.RefreshRequest) (*api.RefreshResponse, error) {
	return c.refresh, c.answer(ctx, r)
}

func (c *control) Check(ctx context.Context, r *api.CheckRequest) (*api.CheckResponse, error) {
	return c.check, c.answer(ctx, r)
}

func (c *control) DeepCheck(r *api.DeepCheckRequest, stream grpc.ServerStreamingServer[api.DeepCheckResponse]) error {
	if err := c.answer(stream.Context(), r); err != nil {
		return err
	}
	for _, message := range c.deep {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	if c.check == nil {
		return nil
	}
	return stream.Send(&api.DeepCheckResponse{Result: c.check})
}

func (c *control) Uninstall(ctx context.Context, r *api.UninstallRequest) (*api.UninstallResponse, error) {
	return c.uninstall, c.answer(ctx, r)
}

func (c *control) DiskUsage(r *api.DiskUsageRequest, stream grpc.ServerStreamingServer[api.DiskUsageResponse]) error {
	if c.usage != nil {
		if err := stream.Send(c.usage); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

func (c *control) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	for _, e := range c.events {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

func (c *control) Diff(ctx context.Context, r *api.DiffRequest) (*api.DiffResponse, error) {
	return c.diff, c.answer(ctx, r)
}

func (c *control) Apply(r *api.ApplyRequest, stream grpc.ServerStreamingServer[api.ApplyResponse]) error {
	return c.applying(r, stream)
}

func (c *control) Rollback(r *api.RollbackRequest, stream grpc.ServerStreamingServer[api.ApplyResponse]) error {
	return c.applying(r, stream)
}

func (c *control) applying(r proto.Message, stream grpc.ServerStreamingServer[api.ApplyResponse]) error {
	for _, message := range c.apply {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return c.answer(stream.Context(), r)
}

func (c *control) LockStatus(ctx context.Context, r *api.LockStatusRequest) (*api.LockStatusResponse, error) {
	return c.lock, c.answer(ctx, r)
}

func (c *control) Containers(ctx context.Context, r *api.ContainersRequest) (*api.ContainersResponse, error) {
	return c.ps, c.answer(ctx, r)
}

func (c *control) CancelApply(ctx context.Context, r *api.CancelApplyRequest) (*api.CancelApplyResponse, error) {
	return &api.CancelApplyResponse{Canceled: true}, c.answer(ctx, r)
}

func (c *control) RemoveLock(ctx context.Context, r *api.RemoveLockRequest) (*api.RemoveLockResponse, error) {
	return c.unlock, c.answer(ctx, r)
}

func (c *control) LimitRate(ctx context.Context, r *api.LimitRateRequest) (*api.DownloadRate, error) {
	return &api.DownloadRate{BytesPerSecond: 5 << 20, Configured: 10 << 20, Changed: true}, c.answer(ctx, r)
}

func (c *control) Version(ctx context.Context, r *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{Version: "0.1.2"}, c.answer(ctx, r)
}

// upstream is the CRI of a server.
type upstream struct {
	cri.UnimplementedRuntimeServiceServer
}

func (upstream) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2+imagepin"}, nil
}

func (upstream) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{RuntimeHandlers: []*cri.RuntimeHandler{{Name: ""}, {Name: "runc"}, {Name: "kata"}}}, nil
}

// serveNode starts the server of a node, with its CRI.
func serveNode(t *testing.T, c *control) (address string) {
	t.Helper()
	_, address = serve(t, func(s *grpc.Server) {
		api.RegisterControlServer(s, c)
		cri.RegisterRuntimeServiceServer(s, upstream{})
	})
	return address
}

// listen returns a listener on a Unix socket. Its path is short, because the system limits it.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "imagepin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	address := filepath.Join(dir, "containerd.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	return l, address
}

// serve starts a server on a socket.
func serve(t *testing.T, register func(*grpc.Server)) (s *grpc.Server, address string) {
	t.Helper()
	l, address := listen(t)
	s = grpc.NewServer()
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		// A command that connects to nothing can end before Serve begins.
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return s, address
}

// result is the result of a command.
type result struct {
	code     int
	out, err string
}

// runAt runs the command with an address.
func runAt(t *testing.T, address string, in io.Reader, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	a := &app{Stdio: Stdio{In: in, Out: &out, Err: &errOut}, now: func() time.Time { return testNow }}
	code := a.run(t.Context(), append([]string{"imagepin", "--address", address}, args...))
	return result{code, out.String(), errOut.String()}
}

// run runs the command with c as the server.
func run(t *testing.T, c *control, args ...string) result {
	t.Helper()
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	return runAt(t, address, bytes.NewReader(nil), args...)
}

func appKey() *api.Key {
	return &api.Key{
		Ref:      appRef,
		Target:   &api.Target{Platform: hostPlatform, Snapshotter: "overlayfs"},
		Handlers: []string{"runc", "runc-debug"},
		Root:     &api.Descriptor{MediaType: indexType, Digest: digestOld, Size: 607},
		Manifest: manifestD, ImageId: imageID, ChainId: chainID,
		Size: 880359, User: "65532", ReadyAt: ago(3 * time.Hour),
		Source: "pull", Host: registryHost, Record: "registry.example.com/shop/app@" + digestOld,
		Pin: "node",
	}
}

func armKey() *api.Key {
	k := appKey()
	k.Ref = "registry.example.com/shop/app@" + digestOld
	k.Target = &api.Target{Platform: "linux/arm64", Snapshotter: "native"}
	k.Handlers, k.Pin, k.User, k.Host, k.Source = nil, "", "", "", "adopted"
	return k
}

func appPin() *api.Pin {
	return &api.Pin{
		Scope: "node", Ref: appRef,
		Root:   &api.Descriptor{MediaType: indexType, Digest: digestOld, Size: 607},
		MadeAt: ago(50 * time.Hour), UsedAt: ago(24 * time.Hour), MadeBy: "use", Retain: true,
		History: []*api.PinChange{{At: ago(60 * time.Hour), Digest: digestNew, By: "operator"}},
		Drift:   &api.Drift{Digest: digestNew, Since: ago(time.Hour)},
	}
}

func workloadPin() *api.Pin {
	return &api.Pin{
		Scope: workload, Ref: appRef, Root: &api.Descriptor{Digest: digestNew}, MadeAt: ago(time.Minute), MadeBy: "operator",
		UsedAt: timestamppb.New(time.Time{}), // never
	}
}

// provisionalPin is a pin that the Kubernetes API does not have yet.
func provisionalPin() *api.Pin {
	p := workloadPin()
	p.Scope, p.MadeBy, p.Provisional = "workload/shop/ReplicaSet/web-7d4b9c/3d4e", "use", true
	return p
}

// lookedUp adds the answer of a registry to a pin.
func lookedUp(p *api.Pin, outcome, why string) *api.Pin {
	p.Lookup = &api.Lookup{At: ago(3 * time.Hour), Outcome: outcome, Why: why}
	if outcome == "gone" {
		p.Lookup.Since = ago(9 * time.Hour)
	}
	return p
}

// clusterPin is the node's copy of a pin in the Kubernetes API.
func clusterPin() *api.Pin {
	p := appPin()
	p.Scope, p.MadeBy, p.Claimer = "workload/shop/ReplicaSet/web-7d4b9c/1b2c", "cluster", "n2"
	return p
}

func appRule() *api.Rule {
	return &api.Rule{Match: "registry.example.com/shop/*", PullBehavior: "always", VersionConsistency: "node", Retain: true, ResolveAt: "origin", Verify: "run"}
}

// recorded returns a server of a node with various images, pins and findings.
func recorded() *control {
	return &control{
		images:  &api.ImagesResponse{Keys: []*api.Key{appKey(), armKey()}},
		inspect: &api.InspectResponse{Ref: appRef, Keys: []*api.Key{appKey(), armKey()}, Pins: []*api.Pin{lookedUp(appPin(), "gone", "the registry has no such digest"), clusterPin(), provisionalPin(), lookedUp(workloadPin(), "present", "")}, Rule: appRule()},
		resolve: &api.ResolveResponse{
			Ref: appRef, Target: appKey().Target, Rule: appRule(), Pin: appPin(),
			Registry: &api.Descriptor{MediaType: indexType, Digest: digestNew, Size: 607}, Host: registryHost,
			Root: appPin().Root, Why: "pinned in scope node since 2026-11-19T10:00:00Z", Manifest: manifestD,
			Missing: []*api.Missing{{What: "layer", Name: layerD, Size: 5 << 20}, {What: "snapshot", Name: chainID}},
		},
		pull:      pulled(),
		pins:      &api.PinsResponse{Pins: []*api.Pin{appPin(), clusterPin(), provisionalPin(), workloadPin()}},
		checked:   &api.PinsResponse{Pins: []*api.Pin{lookedUp(appPin(), "gone", "the registry has no such digest"), lookedUp(workloadPin(), "present", ""), lookedUp(clusterPin(), "no_access", "registry.example.com answered 403 Forbidden")}},
		setPin:    &api.SetPinResponse{Pin: workloadPin(), Previous: digestOld},
		removePin: &api.RemovePinResponse{Pin: appPin()},
		refresh: &api.RefreshResponse{
			Ref: appRef, Registry: &api.Descriptor{MediaType: indexType, Digest: digestNew, Size: 607}, Changed: true,
			Refreshed: []*api.Refreshed{
				{Scope: "node", Before: digestOld, After: digestNew},
				{Target: appKey().Target, Before: digestOld, After: digestNew},
				{Target: armKey().Target, Before: digestNew, After: digestNew},
			},
		},
		check: &api.CheckResponse{Checked: 7, Findings: []*api.Finding{
			{Subject: appRef + " for linux/amd64 on overlayfs", Problem: "its snapshot is gone", Repair: "unpack it again"},
			{Subject: "pin of scope node of " + appRef, Problem: "its label is damaged", Error: "there is no digest in it\nset it again"},
			{Subject: "busybox", Problem: "it is not adopted: its name is not a normalized reference", Repair: "ignore it", NotAdopted: true},
			{Subject: appRef + " for linux/arm64 on overlayfs", Problem: "its files could not be compared: layer " + digestOld + " is not on the node", Repair: "ignore it", Unverified: true},
		}},
		deep:      deepProgress(),
		usage:     diskUsage(),
		diff:      digestDiff(),
		events:    allEvents()[:1],
		apply:     applyMessages(),
		lock:      lockedNode(),
		ps:        &api.ContainersResponse{Containers: containers()},
		unlock:    &api.RemoveLockResponse{Result: &api.ApplyResult{Changes: []*api.LockChange{{Ref: appRef, Before: digestOld}}}},
		uninstall: &api.UninstallResponse{Labels: 11, Records: 3, Leases: 2, Pins: 1},
	}
}

// containers are a container that differs with an image volume that does not, one without a pin, and those of which it is not known.
func containers() []*api.Container {
	differs := &api.Container{
		Id: "4f1c2a9d8b7e6f50", Namespace: "shop", Pod: "web-7d4b9c-x2x", Container: "web", Handler: "runc", Ref: appRef, ImageId: imageID, Digest: digestNew,
		Pin: appPin(), Differs: true, Since: ago(50 * time.Hour), CreatedAt: ago(55 * time.Hour),
	}
	volume := proto.CloneOf(differs)
	volume.Volume, volume.Ref, volume.Digest, volume.Pin, volume.Differs, volume.Since = "/model", "registry.example.com/shop/model:v1", digestOld, clusterPin(), false, nil
	byID := &api.Container{Id: "9ab2", Namespace: "shop", Pod: "tool", Container: "tool", Handler: "kata", ImageId: imageID, Digest: digestOld, CreatedAt: ago(time.Hour)}
	forgotten := proto.CloneOf(volume)
	forgotten.Volume, forgotten.Digest = "", ""
	failed := proto.CloneOf(byID)
	failed.Ref, failed.Error = appRef, "ClusterUnavailable: the Kubernetes API server does not answer"
	return []*api.Container{differs, volume, byID, forgotten, failed}
}

// deepProgress is the progress of a deep check.
func deepProgress() []*api.DeepCheckResponse {
	var all []*api.DeepCheckResponse
	for i := range int64(6) {
		all = append(all, &api.DeepCheckResponse{Progress: &api.DeepCheckProgress{
			Blobs: i, BlobsTotal: 5, Bytes: i * 4 << 20, BytesTotal: 20 << 20, SnapshotsTotal: 2,
		}})
	}
	last := proto.CloneOf(all[5].Progress)
	last.Snapshots = 2
	return append(all, &api.DeepCheckResponse{Progress: last})
}

// repairs are findings with all types of repairs.
func repairs() []*api.Finding {
	of := func(version, problem, repair string, repaired bool, err string) *api.Finding {
		return &api.Finding{
			Subject: "registry.example.com/shop/app:" + version + " for linux/amd64 on overlayfs", Problem: problem,
			Repair: repair, Repaired: repaired, Error: err,
		}
	}
	return []*api.Finding{
		of("v1", "its snapshot is gone", "unpacked again from local content", true, ""),
		of("v2", "content "+manifestD+" is gone", "fetched again by digest", true, ""),
		of("v3", "content "+manifestD+" is gone", "key dropped: the registry no longer has the image", false, "CannotPullImage: not found\nis it?"),
		of("v6", "content "+manifestD+" is gone", "the registry cannot be reached", false, "CannotPullImage: connection refused\nCheck the network."),
		of("v7", "content "+manifestD+" is gone", "the key is kept as damaged", false, "PullAccessDenied: the registry denies access"),
		of("v4", "its record does not carry its label", "records and labels repaired", true, ""),
		of("v5", "its record does not carry its label", "ignored", false, "write image record: the disk is full"),
		{Subject: "busybox", Problem: "it is not adopted: its name is not a normalized reference", Repair: "ignored", NotAdopted: true},
	}
}

// pulled is a pull of one layer, with the index on the node.
func pulled() []*api.PullResponse {
	index := &api.Progress{Digest: digestOld, MediaType: indexType}
	layer := &api.Progress{Digest: layerD, MediaType: layerType, Total: 5 << 20}
	at := func(p *api.Progress, event string, offset int64) *api.Progress {
		p = proto.CloneOf(p)
		p.Event, p.Offset = event, offset
		return p
	}
	return []*api.PullResponse{
		{Progress: []*api.Progress{{Event: "Resolving from " + appRef}}},
		{Progress: []*api.Progress{{Event: "fetching image content"}, at(index, "already exists", 0), at(layer, "waiting", 0)}},
		{Progress: []*api.Progress{at(layer, "downloading", 1<<20)}},
		{Progress: []*api.Progress{at(layer, "downloading", 5<<20)}},
		{Progress: []*api.Progress{at(layer, "complete", 5<<20)}},
		{Progress: []*api.Progress{at(layer, "extracting", 0)}},
		{Progress: []*api.Progress{at(layer, "extracted", 5<<20), {Event: "saved"}}},
		{Result: &api.PullResult{Key: appKey(), Done: "fetched"}},
	}
}

// diskUsage has an image that shares a layer with another, and a snapshotter that does not respond.
func diskUsage() *api.DiskUsageResponse {
	return &api.DiskUsageResponse{
		Images: []*api.ImageUsage{
			{
				ImageId: imageID, Refs: []string{appRef, "registry.example.com/shop/app@" + digestOld}, Content: 860 << 10, Unique: 2 << 20, Shared: 700 << 10,
				Unpacked: []*api.UnpackedUsage{{Snapshotter: "native", Unknown: true}, {Snapshotter: "overlayfs", Size: 1800 << 10}},
			},
			{
				ImageId: chainID, Refs: []string{"registry.example.com/a/long/path/to/the/repository/of/the/shop/app:v1.2.3-4", "registry.example.com/shop/web:v1"},
				Content: 5 << 10, Shared: 5 << 10, Unpacked: []*api.UnpackedUsage{{Snapshotter: "native", Unknown: true}},
			},
			{ImageId: manifestD, Refs: []string{"registry.example.com/shop/app@" + digestNew}, Content: 1023 << 20, Unique: 1023 << 20},
		},
		Content: &api.ContentUsage{Blobs: 9, Size: 1025 << 20}, OtherContent: &api.ContentUsage{Blobs: 1, Size: 512},
		Snapshotters: []*api.SnapshotterUsage{
			{Snapshotter: "native", Error: "no answer within 2s"}, {Snapshotter: "overlayfs", Snapshots: 4, Size: 1800 << 10, OtherSnapshots: 1, OtherSize: 3 << 20},
		},
	}
}

// digestDiff has a platform with each change, and texts with control characters.
func digestDiff() *api.DiffResponse {
	return &api.DiffResponse{
		Ref: appRef, From: appPin().Root, FromIs: "pinned in scope node", To: &api.Descriptor{Digest: digestNew}, ToIs: "of the tag in the registry, which has moved",
		Platforms: []*api.PlatformDiff{
			{
				Platform: hostPlatform, Change: "changed", Compared: true, FromManifest: manifestD, ToManifest: digestNew, FromSize: 5 << 20, ToSize: 4 << 20,
				Layers: []*api.LayerDiff{
					{Change: "removed", Digest: chainID, Size: 1 << 20}, {Change: "same", Digest: layerD, Size: 4 << 20}, {Change: "added", Digest: imageID, Size: 32},
				},
				Config: []*api.ConfigDiff{
					{Field: "cmd", From: proto.String(`["serve"]`)}, {Field: "env VERSION", From: proto.String("1"), To: proto.String("2")},
					{Field: "exposed_port 80/tcp", To: proto.String("")}, {Field: "label a\x1b[2J", To: proto.String("x\ny")},
				},
			},
			{Platform: "linux/arm64", Change: "changed", FromManifest: manifestD, ToManifest: digestNew},
			{Platform: "linux/s390x", Change: "added", Compared: true, ToManifest: digestNew, ToSize: 2 << 20},
			{Platform: "linux/riscv64", Change: "removed", Compared: true, FromManifest: digestNew, FromSize: 3 << 20},
			{Platform: "linux/386", Change: "same", Compared: true, FromManifest: digestNew, ToManifest: digestNew, FromSize: 1 << 20, ToSize: 1 << 20},
		},
	}
}
