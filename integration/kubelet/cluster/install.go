package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// InstallFiles creates the objects in manifest files, see [Cluster.Install].
func (c *Cluster) InstallFiles(ctx context.Context, files ...string) error {
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = c.Install(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// Install creates the objects in a stream of manifests in their order. They must not be namespaced.
func (c *Cluster) Install(ctx context.Context, manifests io.Reader) error {
	documents := yaml.NewYAMLOrJSONDecoder(manifests, 4096)
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(o.Object) == 0 {
			continue // a comment
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		path := strings.Join([]string{"/apis", o.GetAPIVersion(), resource.Resource}, "/")
		if err := c.Do(ctx, "POST", path+"?fieldValidation=Strict", o.Object, nil); err != nil {
			return err
		}
	}
}

// AwaitImagePins waits until the API server serves ImagePins, which is some time after their installation.
func (c *Cluster) AwaitImagePins(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.Do(ctx, "GET", "/apis/imagepin.io/v1alpha1/imagepins", nil, nil)
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
