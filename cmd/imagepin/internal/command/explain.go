package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/introspection/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	imagepinconfig "github.com/imagepin/imagepin/pkg/imagepin/config"
)

// explainTimeout bounds each call that finds the reason of an error.
const explainTimeout = 5 * time.Second

// lostMessage begins gRPC's message for a connection that was lost during a call.
const lostMessage = "error reading from server: "

// explain converts a gRPC status to a message for users.
func (a *app) explain(ctx context.Context, conn grpc.ClientConnInterface, err error, address string) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Unavailable: // containerd, or a registry that it called
		if strings.HasPrefix(s.Message(), lostMessage) {
			return fmt.Errorf("%s exited, or was restarted, before the command was complete", a.serverOf(address))
		}
		if err := checkReachable(ctx, address); err != nil {
			return fmt.Errorf("cannot connect to %s: %w%s", a.serverOf(address), err, a.connectHint(err, address))
		}
	case codes.Unimplemented:
		switch {
		case strings.HasPrefix(s.Message(), "unknown method"):
			return fmt.Errorf("imagepin at %s is older than this command: %s", address, s.Message())
		case strings.HasPrefix(s.Message(), "unknown service"):
			return a.notServed(ctx, conn, address)
		}
	}
	return errors.New(s.Message())
}

// checkReachable returns an error if containerd does not accept connections.
func checkReachable(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// connectHint returns a line that says what to do about an error of a connection; "" if nothing is known.
func (a *app) connectHint(err error, address string) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		if group := socketGroup(address); group != "" {
			return "\nRun imagepin as root, or as a member of the group " + group + "."
		}
		return "\nRun imagepin as root."
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED):
		return ""
	}
	const startServe, startContainerd = "\nStart imagepin serve: systemctl start imagepin", "\nStart containerd: systemctl start containerd"
	switch a.serverOf(address) {
	case imagepinServe:
		return startServe
	case containerd:
		return startContainerd + a.serveHint(address)
	}
	return startServe + startContainerd + a.serveHint(address)
}

// What can have a socket.
const (
	imagepinServe = "imagepin serve"
	containerd    = "containerd"
)

// serverOf returns what serves a socket, by the name of the socket: its default name is that of its server.
func (a *app) serverOf(address string) string {
	switch name := filepath.Base(address); {
	case address == a.serveSocket, strings.HasPrefix(name, "imagepin"):
		return imagepinServe
	case strings.HasPrefix(name, "containerd"):
		return containerd
	}
	return containerd + " or " + imagepinServe
}

// serveHint returns a line about imagepin serve if it has another socket than the one that was called; otherwise "".
func (a *app) serveHint(address string) string {
	if _, err := os.Stat(a.serveSocket); err != nil || a.serveSocket == address {
		return ""
	}
	return "\nThis node has a socket of imagepin serve: add --address " + a.serveSocket
}

const correctHint = "\nCorrect this and restart containerd."

// notServed returns why containerd does not serve imagepin. containerd reports the errors of its plugins.
func (a *app) notServed(ctx context.Context, conn grpc.ClientConnInterface, address string) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	failed, err := pluginErrors(ctx, conn, imagepinconfig.Section, imagepinconfig.CRISection)
	own, hasOwn := failed[imagepinconfig.Section]
	switch {
	case err != nil:
		return fmt.Errorf("containerd at %s does not serve imagepin: the plugin is missing, is disabled, or failed to load (see ctr plugins ls)%s", address, a.serveHint(address))
	case !hasOwn:
		return fmt.Errorf("containerd at %s does not serve imagepin: the plugin %s is missing or disabled%s", address, imagepinconfig.Section, a.serveHint(address))
	case own != "":
		const check = " To check its configuration, run: imagepin config check /etc/containerd/config.toml"
		return fmt.Errorf("imagepin failed to load in containerd at %s: %s%s", address, strings.TrimPrefix(own, "imagepin: "), correctHint+check)
	case failed[imagepinconfig.CRISection] != "":
		return fmt.Errorf("the CRI failed to load in containerd at %s: %s%s", address, failed[imagepinconfig.CRISection], correctHint)
	}
	return fmt.Errorf("containerd at %s does not serve imagepin: the plugin %s is missing or disabled", address, imagepinconfig.CRISection)
}

// pluginErrors returns the errors of plugins of containerd, by URI; "" for a plugin that is loaded. A plugin that is
// missing or disabled is not in the result.
func pluginErrors(ctx context.Context, conn grpc.ClientConnInterface, uris ...string) (map[string]string, error) {
	resp, err := introspection.NewIntrospectionClient(conn).Plugins(ctx, &introspection.PluginsRequest{})
	if err != nil {
		return nil, err
	}
	failed := make(map[string]string)
	for _, p := range resp.GetPlugins() {
		for _, uri := range uris {
			if p.GetType()+"."+p.GetID() == uri {
				failed[uri] = p.GetInitErr().GetMessage()
			}
		}
	}
	return failed, nil
}
