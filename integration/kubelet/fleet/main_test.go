package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	nodev1 "k8s.io/api/node/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

const (
	// second is the runtime class on a second snapshotter, foreign the one with the platform foreignPlatform.
	second, foreign = "second", "foreign"
	// foreignPlatform is not this machine's.
	foreignPlatform = "linux/s390x"
)

// handlers are those of the runtime classes.
var handlers = []node.Handler{{Name: second, Snapshotter: "native"}, {Name: foreign, Platform: foreignPlatform}}

// controllers are the controllers of the workloads, and those that they need.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "daemonset-controller", "job-controller", "garbage-collector-controller",
	"namespace-controller", "node-lifecycle-controller", "clusterrole-aggregation-controller",
}

// kube is the cluster of all tests.
var kube *cluster.Cluster

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
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if kube, err = cluster.Start(ctx, cluster.Options{Authorize: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, kube.Close()) }()
	var files []string
	for _, name := range []string{"crd.yaml", "admission-policy.yaml", "flowschema.yaml", "rbac.yaml"} {
		files = append(files, filepath.Join("../../../contrib/kubernetes/cluster", name))
	}
	if err := kube.InstallFiles(ctx, files...); err != nil {
		return 1, err
	}
	if err := kube.AwaitImagePins(ctx); err != nil {
		return 1, err
	}
	for _, class := range []string{second, foreign} {
		rc := &nodev1.RuntimeClass{ObjectMeta: meta.ObjectMeta{Name: class}, Handler: class}
		if err := kube.Do(ctx, "POST", "/apis/node.k8s.io/v1/runtimeclasses", rc, nil); err != nil {
			return 1, err
		}
	}
	if err := errors.Join(kube.StartControllers(controllers...), kube.StartScheduler()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
