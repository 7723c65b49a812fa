package agree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
)

// manifests are the files of contrib/kubernetes/cluster in the order of its kustomization.
var manifests = []string{"crd.yaml", "admission-policy.yaml", "flowschema.yaml", "rbac.yaml"}

// controllers are the controllers of the workloads, and those that they need.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller",
	"cronjob-controller", "garbage-collector-controller", "namespace-controller", "node-lifecycle-controller",
	"clusterrole-aggregation-controller",
}

var (
	// kube is the cluster of all tests.
	kube *cluster.Cluster
	// three has the three nodes of the tests that do not disturb their nodes.
	three *pool
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
	if three, err = startPool(ctx, "three", poolOptions{nodes: 3, staticPods: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, three.close()) }()
	return m.Run(), nil
}

// install creates the objects of the manifests and waits until the API server serves ImagePins.
func install(ctx context.Context) error {
	for _, name := range manifests {
		f, err := os.Open(filepath.Join("../../../contrib/kubernetes/cluster", name))
		if err != nil {
			return err
		}
		defer f.Close()
		docs := yaml.NewYAMLOrJSONDecoder(f, 4096)
		for {
			var o unstructured.Unstructured
			if err := docs.Decode(&o.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if len(o.Object) == 0 {
				continue // a comment
			}
			plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
			if err := kube.Do(ctx, "POST", "/apis/"+o.GetAPIVersion()+"/"+plural.Resource, o.Object, nil); err != nil {
				return err
			}
		}
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := kube.Do(ctx, "GET", pinsPath("default"), nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("ImagePins are not served: %w: %v", context.Cause(ctx), err)
		}
	}
}

func pinsPath(ns string, name ...string) string {
	return strings.Join(append([]string{"/apis/imagepin.io/v1alpha1/namespaces", ns, "imagepins"}, name...), "/")
}
