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
	"google.golang.org/grpc"
)

func main() {
	root := flag.String("root", "", "directory of everything it writes")
	address := flag.String("address", "", "unix socket to serve on")
	flag.Parse()
	if err := run(*root, *address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// Only what is read is fetched, so that the tests can tell from the registry's requests what was.
	sn, err := service.NewStargzSnapshotterService(ctx, root, &service.Config{
		Config: config.Config{NoBackgroundFetch: true, NoPrefetch: true, NoPrometheus: true},
		// As its documentation has it for nodes: after a crash it starts also where a layer cannot be mounted again.
		SnapshotterConfig: service.SnapshotterConfig{AllowInvalidMountsOnRestart: true},
	})
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
	rpc := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(rpc, snapshotservice.FromSnapshotter(sn))
	go func() {
		<-ctx.Done()
		rpc.Stop()
	}()
	return rpc.Serve(l)
}
