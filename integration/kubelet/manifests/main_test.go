package manifests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
)

// api is the API server of most tests.
var api *server

// controllers are the controllers that run with [api]. They create pods, and aggregate, check and delete objects of the
// manifests.
var controllers = []string{
	"replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller",
	"clusterrole-aggregation-controller", "validatingadmissionpolicy-status-controller", "garbage-collector-controller",
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
	if api, err = start(context.Background(), cluster.Options{Authorize: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	// After the installation, because the garbage collector looks for new resources only every 30 seconds.
	if err := api.StartControllers(controllers...); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
