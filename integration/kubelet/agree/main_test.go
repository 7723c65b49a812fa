package agree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/kubelet/pool"
)

// manifests are the files of contrib/kubernetes/cluster in the order of its kustomization.
var manifests = []string{"crd.yaml", "admission-policy.yaml", "flowschema.yaml", "rbac.yaml"}

// controllers are the controllers of the workloads, and those that they need.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller",
	"cronjob-controller", "garbage-collector-controller", "namespace-controller", "node-lifecycle-controller",
	"clusterrole-aggregation-controller", "resourcequota-controller",
}

var (
	// kube is the cluster of all tests.
	kube *cluster.Cluster
	// three has the three nodes of the tests that do not disturb their nodes.
	three *pool.Pool
)

func TestMain(m *testing.M) {
	os.Exit(cluster.InNamespace(func() int {
		code, err := withCluster(m)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

func withCluster(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if kube, err = cluster.Start(ctx, cluster.Options{Authorize: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, kube.Close()) }()
	if err := install(ctx); err != nil {
		return 1, err
	}
	// After the installation, because the garbage collector looks for new resources only every 30 seconds.
	if err := errors.Join(kube.StartControllers(controllers...), kube.StartScheduler()); err != nil {
		return 1, err
	}
	if three, err = startPool(ctx, "three", poolOptions{Options: pool.Options{Nodes: 3, StaticPods: true, Edit: allowOverrides}}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, three.Close()) }()
	return m.Run(), nil
}

// install installs ImagePins.
func install(ctx context.Context) error {
	var files []string
	for _, name := range manifests {
		files = append(files, filepath.Join("../../../contrib/kubernetes/cluster", name))
	}
	if err := kube.InstallFiles(ctx, files...); err != nil {
		return err
	}
	return kube.AwaitImagePins(ctx)
}

func pinsPath(ns string, name ...string) string {
	return strings.Join(append([]string{"/apis/imagepin.io/v1alpha1/namespaces", ns, "imagepins"}, name...), "/")
}
