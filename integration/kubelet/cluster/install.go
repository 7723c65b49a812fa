package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Install creates the objects in manifest files, which are objects of the cluster, in their order.
func (c *Cluster) Install(ctx context.Context, files ...string) error {
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = c.install(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func (c *Cluster) install(ctx context.Context, r io.Reader) error {
	documents := yaml.NewYAMLOrJSONDecoder(r, 4096)
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
		if err := c.Do(ctx, "POST", path, o.Object, nil); err != nil {
			return err
		}
	}
}
