// Command skopeocopy does what skopeo copy --all does, with skopeo's library and without cgo. Its arguments are pairs of a source
// and a target, which it copies one after the other. Registries are asked by HTTP.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/transports/alltransports"
	"go.podman.io/image/v5/types"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "skopeocopy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || len(args)%2 != 0 {
		return fmt.Errorf("want pairs of a source and a target, got %d arguments", len(args))
	}
	for ; len(args) > 0; args = args[2:] {
		if err := copyImage(ctx, args[0], args[1]); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
	}
	return nil
}

func copyImage(ctx context.Context, from, to string) error {
	source, err := alltransports.ParseImageName(from)
	if err != nil {
		return err
	}
	target, err := alltransports.ParseImageName(to)
	if err != nil {
		return err
	}
	policy, err := signature.NewPolicyContext(&signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		return err
	}
	_, err = copy.Image(ctx, policy, target, source, &copy.Options{
		ImageListSelection: copy.CopyAllImages, PreserveDigests: true, ReportWriter: io.Discard,
		SourceCtx: &types.SystemContext{DockerInsecureSkipTLSVerify: types.OptionalBoolTrue}, DestinationCtx: &types.SystemContext{},
	})
	return err
}
