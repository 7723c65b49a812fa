package command

import (
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"
	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/contrib/kubernetes/cluster"
)

func (e *env) install() *cobra.Command {
	return &cobra.Command{
		Use:   "install",
		Short: "Print the manifests that a cluster needs for ImagePins",
		Long: templates.LongDesc(`
			Print the manifests that a cluster needs for ImagePins, in the version of this plugin. It changes nothing.`),
		Example: templates.Examples(`
			# Install the manifests
			kubectl imagepin install | kubectl apply -f -`),
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return writeManifests(e.Out, cluster.Manifests) },
	}
}

// writeManifests writes the resources of a kustomization as a stream of YAML documents, in its order.
func writeManifests(w io.Writer, files fs.FS) error {
	text, err := fs.ReadFile(files, "kustomization.yaml")
	if err != nil {
		return err
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return fmt.Errorf("kustomization.yaml: %w", err)
	}
	for _, name := range kustomization.Resources {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		doc := strings.TrimSpace(strings.TrimPrefix(string(text), "---\n"))
		if _, err := fmt.Fprintf(w, "---\n# %s\n%s\n", name, doc); err != nil {
			return err
		}
	}
	return nil
}
