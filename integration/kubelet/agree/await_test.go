package agree

import (
	"context"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

// patience is how long tests wait for the cluster.
const patience = 2 * time.Minute

// await waits until a condition holds for all objects, and returns them, see [cluster.Await]. what describes the condition in
// a failure.
func await[T any, P interface {
	*T
	meta.Object
}](t *testing.T, path, selector, what string, done func([]T) bool) []T {
	t.Helper()
	ctx, cancel := context.WithTimeout(testkit.Context(t), patience)
	defer cancel()
	all, err := cluster.Await[T, P](ctx, kube.Client, path, selector, done)
	if err != nil {
		t.Fatalf("did not happen: %s: %v", what, err)
	}
	return all
}
