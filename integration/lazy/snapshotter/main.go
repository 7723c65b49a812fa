// The stargz snapshotter as a process: containerd's proxy plugin talks to it. Its own module of commands is not published.
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
	root := flag.String("root", "", "directory of everything it writes")
	address := flag.String("address", "", "unix socket to serve on")
	containerd := flag.String("containerd", "", "containerd's socket: serve its ImageService as well, to learn the credentials of pulls")
	flag.Parse()
	if err := run(*root, *address, *containerd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, address, containerd string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	rpc := grpc.NewServer()
	// The two ways that it has to credentials of its own, as its documentation has them: those of the node, from Docker's
	// configuration, and those of pods' pull secrets, as a proxy that kubelet is pointed at for images.
	credentials := []resolver.Credential{dockerconfig.NewDockerconfigKeychain(ctx)}
	if containerd != "" {
		conn, err := grpc.NewClient("unix://"+containerd, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		ofPulls, server := crikeychain.NewCRIKeychain(ctx, func() (cri.ImageServiceClient, error) { return cri.NewImageServiceClient(conn), nil })
		cri.RegisterImageServiceServer(rpc, server)
		credentials = append(credentials, ofPulls)
	}
	// Only what is read is fetched, so that the tests can tell from the registry's requests what was.
	sn, err := service.NewStargzSnapshotterService(ctx, root, &service.Config{
		Config: config.Config{NoBackgroundFetch: true, NoPrefetch: true, NoPrometheus: true},
		// As its documentation has it for nodes: after a crash it starts also where a layer cannot be mounted again.
		SnapshotterConfig: service.SnapshotterConfig{AllowInvalidMountsOnRestart: true},
	}, service.WithCredsFuncs(credentials...))
	if err != nil {
		return err
	}
	defer sn.Close()
	// A socket of a killed process would refuse.
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
