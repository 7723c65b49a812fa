package kubectl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
)

var (
	api     *server
	images  *registry
	kubectl *plugin
	// without are the results of commands before ImagePins are installed.
	without map[string]result
)

// controllers are the controllers that run.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller", "cronjob-controller",
	"clusterrole-aggregation-controller",
}

func TestMain(m *testing.M) {
	code, err := withServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withServer(m *testing.M) (code int, err error) {
	ctx := context.Background()
	c, err := cluster.Start(ctx, cluster.Options{Authorize: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	api, images = &server{c}, startRegistry()
	defer images.close()
	if kubectl, err = newPlugin(c.Kubeconfig(), images.url()); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, kubectl.close()) }()
	if err := api.prepare(ctx); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
