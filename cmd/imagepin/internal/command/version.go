package command

import (
	"context"
	"fmt"
	"runtime"

	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/version"
)

const versionDescription = `Shows the version of this command, and those of the imagepin and the containerd
that answer. With --client, it calls nothing.

Examples:
  imagepin version
  imagepin version --client
  imagepin version -o json | jq -r .server.containerd`

// versions is the output of version.
type versions struct {
	Client clientVersion  `json:"client"`
	Server *serverVersion `json:"server,omitempty"`
}

type clientVersion struct {
	Imagepin string `json:"imagepin"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

type serverVersion struct {
	Imagepin   string `json:"imagepin"`
	Containerd string `json:"containerd"`
}

func (a *app) versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "Show the versions of this command and of the server",
		Description: versionDescription,
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "client", Usage: "only the version of this command"}},
		Action:      noArguments(a.version),
	}
}

// version prints the version of the client also if the server does not answer.
func (a *app) version(ctx context.Context, cmd *cli.Command) error {
	all := versions{Client: clientVersion{version.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}}
	var failed error
	if !cmd.Bool("client") {
		failed = a.dial(ctx, cmd, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			all.Server, err = serverVersions(ctx, conn)
			return err
		})
	}
	if err := a.print(cmd, all, func() error { return a.printVersions(all) }); err != nil {
		return err
	}
	return failed
}

func serverVersions(ctx context.Context, conn *grpc.ClientConn) (*serverVersion, error) {
	own, err := api.NewControlClient(conn).Version(ctx, &api.VersionRequest{})
	if err != nil {
		return nil, err
	}
	upstream, err := cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, err
	}
	return &serverVersion{Imagepin: own.GetVersion(), Containerd: upstream.GetRuntimeVersion()}, nil
}

func (a *app) printVersions(v versions) error {
	fmt.Fprintln(a.Out, "Client:")
	if err := block(a.Out, "  ",
		field{"imagepin", v.Client.Imagepin}, field{"Go", v.Client.Go}, field{"Platform", v.Client.Platform},
	); err != nil || v.Server == nil {
		return err
	}
	fmt.Fprintln(a.Out, "Server:")
	return block(a.Out, "  ", field{"imagepin", v.Server.Imagepin}, field{"containerd", v.Server.Containerd})
}
