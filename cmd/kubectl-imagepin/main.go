// Command kubectl-imagepin is a plugin of kubectl, which runs it as "kubectl imagepin". It shows which digests the pods
// of a revision run, and shows and changes ImagePins.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the authentication methods of kubeconfig files
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	stderr := escaper{os.Stderr}
	cmdutil.BehaviorOnFatal(func(message string, code int) {
		if message != "" {
			fmt.Fprintln(stderr, strings.TrimSuffix(message, "\n"))
		}
		os.Exit(code)
	})
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: stderr}
	cmdutil.CheckErr(command.New(streams).ExecuteContext(ctx))
}

// escaper escapes what a terminal would interpret. Messages have text of registries and of objects.
type escaper struct{ w io.Writer }

func (e escaper) Write(p []byte) (int, error) {
	return len(p), printers.WriteEscaped(e.w, string(p))
}
