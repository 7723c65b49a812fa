// Command snapshotter serves the stargz snapshotter to containerd's proxy plugin. It exists because the module of the
// project's own command is not published.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/service"
	crikeychain "github.com/containerd/stargz-snapshotter/service/keychain/cri"
	"github.com/containerd/stargz-snapshotter/service/keychain/dockerconfig"
	"github.com/containerd/stargz-snapshotter/service/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	root := flag.String("root", "", "directory for all files")
	address := flag.String("address", "", "unix socket to serve on")
	containerd := flag.String("containerd", "", "containerd's socket: also serve its ImageService, to read the credentials of pulls")
	background := flag.Bool("background", false, "prefetch, and fetch the rest of layers in the background")
	flag.Parse()
	if err := run(*root, *address, *containerd, *background); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, address, containerd string, background bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	rpc := grpc.NewServer()
	// The snapshotter's documentation names these two sources of credentials: Docker's configuration, for those of the
	// node, and a CRI proxy for kubelet, for pull secrets of pods.
	credentials := []resolver.Credential{dockerconfig.NewDockerconfigKeychain(ctx)}
	if containerd != "" {
		conn, err := grpc.NewClient("unix://"+containerd, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		pullCredentials, server := crikeychain.NewCRIKeychain(ctx, func() (cri.ImageServiceClient, error) { return cri.NewImageServiceClient(conn), nil })
		cri.RegisterImageServiceServer(rpc, server)
		credentials = append(credentials, pullCredentials)
	}
	// Without prefetch and background fetch, the registry requests show what was read.
	sn, err := service.NewStargzSnapshotterService(ctx, root, &service.Config{
		Config: config.Config{NoBackgroundFetch: !background, NoPrefetch: !background, NoPrometheus: true},
		// Recommended for nodes: after a crash, the snapshotter starts even if it cannot mount a layer again.
		SnapshotterConfig: service.SnapshotterConfig{AllowInvalidMountsOnRestart: true},
	}, service.WithCredsFuncs(credentials...))
	if err != nil {
		return err
	}
	defer sn.Close()
	// A socket of a killed process would make net.Listen fail.
	if err := os.RemoveAll(address); err != nil {
		return err
	}
	l, err := net.Listen("unix", address)
	if err != nil {
		return err
	}
	snapshotsapi.RegisterSnapshotsServer(rpc, snapshotservice.FromSnapshotter(sn))
	go func() {
		<-ctx.Done()
		rpc.Stop()
	}()
	return rpc.Serve(l)
}
