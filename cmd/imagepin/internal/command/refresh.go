package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const refreshDescription = `Resolves a tag at the registry, pulls the current digest for every platform and
snapshotter that has the tag, and moves the tag's pins to that digest. Running
containers are not affected. BEFORE and AFTER are digests as the registry returns
them for a tag.

With --drifted, it refreshes every pin of this node whose tag has moved, as
"imagepin pin ls" shows them. Copies of ImagePins of the cluster are not changed.

Exit code:
  0   nothing changed
  10  a digest changed
  1   failed for at least one pin or target

Examples:
  imagepin refresh docker.io/library/nginx:1.29
  imagepin refresh shop:v7 --scope node
  imagepin refresh --drifted
  imagepin refresh shop:v7; case $? in 0) ;; 10) kubectl rollout restart deployment/shop ;; *) exit 1 ;; esac` + credentialHelp

func (a *app) refreshCommand() *cli.Command {
	return &cli.Command{
		Name:        "refresh",
		Usage:       "Move pins to the tag's current digest and pull it",
		ArgsUsage:   "REF",
		Description: refreshDescription,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "drifted", Usage: "refresh every pin of this node whose tag has moved, instead of REF"}, scopesFlag(), noTruncFlag(),
		}, credentialFlags()...),
		Action: a.refresh,
	}
}

func (a *app) refresh(ctx context.Context, cmd *cli.Command) error {
	if cmd.Bool("drifted") {
		return a.refreshDrifted(ctx, cmd)
	}
	args, credential, err := a.argumentsAndCredential(ctx, cmd, "REF")
	if err != nil {
		return err
	}
	response, err := show(ctx, a, cmd, api.ControlClient.Refresh, &api.RefreshRequest{Ref: args[0], Scope: scopes(cmd), Credential: credential}, a.printRefresh)
	if err != nil {
		return err
	}
	return redactPassword(refreshResult(response), credential)
}

// refreshResult returns the documented exit code.
func refreshResult(r *api.RefreshResponse) error {
	failed := 0
	for _, one := range r.GetRefreshed() {
		if one.GetError() != "" {
			failed++
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("failed to refresh %d of %d", failed, len(r.GetRefreshed()))
	case r.GetChanged():
		return exitError(exitChanged)
	}
	return nil
}

func (a *app) printRefresh(s style, r *api.RefreshResponse) error {
	fmt.Fprintf(a.Out, "%s resolves to %s\n", r.GetRef(), r.GetRegistry().GetDigest())
	if len(r.GetRefreshed()) == 0 {
		return nil
	}
	return a.table([]string{"KIND", "SCOPE", "TARGET", "BEFORE", "AFTER", "RESULT"}, mapped(r.GetRefreshed(), func(one *api.Refreshed) []string {
		kind := "image"
		if one.GetScope() != "" {
			kind = "pin"
		}
		return []string{
			kind, orNone(one.GetScope()), targetName(one.GetTarget()), s.digest(one.GetBefore()), s.digest(one.GetAfter()), refreshedText(one),
		}
	}))
}

func refreshedText(r *api.Refreshed) string {
	switch {
	case r.GetError() != "":
		return "failed: " + firstLine(r.GetError())
	case r.GetBefore() == r.GetAfter():
		return "unchanged"
	}
	return "changed"
}
