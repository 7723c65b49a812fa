//go:build unix

package install

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// poll is how often the health of a service is read until it is healthy.
const poll = 200 * time.Millisecond

// await calls check until it succeeds. If ctx ends, it returns the last error that is not because of that.
func await(ctx context.Context, check func(context.Context) error) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var last error
	for {
		call, cancel := context.WithTimeout(ctx, stable+5*time.Second)
		err := check(call)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last
		}
	}
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// healthyCRI returns an error unless the CRI on a socket answers, and its runtime is ready. The network need not be ready.
func healthyCRI(ctx context.Context, socket string) error {
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return fmt.Errorf("CRI on %s: %w", socket, err)
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == cri.RuntimeReady && !c.GetStatus() {
			return fmt.Errorf("CRI on %s: the runtime is not ready: %s: %s", socket, c.GetReason(), c.GetMessage())
		}
	}
	if _, err := cri.NewImageServiceClient(conn).ListImages(ctx, &cri.ListImagesRequest{}); err != nil {
		return fmt.Errorf("CRI on %s: %w", socket, err)
	}
	return nil
}

// healthyImagepin returns an error unless imagepin of a version answers on a socket.
func healthyImagepin(ctx context.Context, socket, version string) error {
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	v, err := api.NewControlClient(conn).Version(inCRINamespace(ctx), &api.VersionRequest{})
	if err != nil {
		return fmt.Errorf("imagepin on %s: %w", socket, err)
	}
	if v.GetVersion() != version {
		return fmt.Errorf("imagepin on %s has version %s, not %s", socket, v.GetVersion(), version)
	}
	return nil
}

// containerdVersion returns the version of the containerd on a socket.
func containerdVersion(ctx context.Context, socket string) (string, error) {
	conn, err := dial(socket)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	v, err := versionapi.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	if err != nil {
		return "", fmt.Errorf("containerd on %s: %w", socket, err)
	}
	return v.GetVersion(), nil
}

// removeLabels removes what imagepin has written to containerd's metadata, as "imagepin uninstall" does.
func removeLabels(ctx context.Context, socket string) (*api.UninstallResponse, error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return api.NewControlClient(conn).Uninstall(inCRINamespace(ctx), &api.UninstallRequest{})
}

// inCRINamespace returns a context with the namespace of containerd's CRI.
func inCRINamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, "k8s.io")
}

// stable is how long kubelet must run if its health cannot be read.
const stable = 10 * time.Second

// healthy returns an error unless kubelet runs and its health endpoint answers.
func (k *kubelet) healthy(ctx context.Context, s *systemd) error {
	u, err := s.unit(ctx, kubeletUnit)
	if err != nil {
		return err
	}
	if u.pid == 0 {
		return fmt.Errorf("%s does not run", kubeletUnit)
	}
	if k.healthz == "" {
		return k.stays(ctx, s, u.pid)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.healthz, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("health of kubelet: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health of kubelet: %s answers %s", k.healthz, resp.Status)
	}
	return nil
}

// stays returns an error unless kubelet runs for a while with the same process.
func (k *kubelet) stays(ctx context.Context, s *systemd, pid int) error {
	select {
	case <-time.After(stable):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	u, err := s.unit(ctx, kubeletUnit)
	if err == nil && u.pid != pid {
		err = errors.New("kubelet restarts again and again")
	}
	return err
}
