package command

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/imagepin/imagepin/version"
)

func (e *env) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the plugin",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(e.Out, "kubectl-imagepin %s (%s, %s/%s)\n", version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
