package command

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

const refreshDescription = `Asks the registry what a reference means now, moves its pins there, and pulls it
for every platform and snapshotter that had it. What runs already goes on as it
is.

Exit code:
  0   nothing changed
  10  something is another digest now
  1   it failed, at least for one pin or target

Examples:
  imagepin refresh docker.io/library/nginx:1.29
  imagepin refresh shop:v7 --scope node
  imagepin refresh shop:v7 || [ $? -ne 10 ] || kubectl rollout restart deployment/shop` + credentialHelp

func (a *app) refreshCommand() *cli.Command {
	return &cli.Command{
		Name:        "refresh",
		Usage:       "Let a reference mean what its tag means now, and pull that",
		ArgsUsage:   "REF",
		Description: refreshDescription,
		Flags:       append([]cli.Flag{scopeFlag("all"), noTruncFlag()}, credentialFlags()...),
		Action:      a.refresh,
	}
}

func (a *app) refresh(ctx context.Context, cmd *cli.Command) error {
	args, err := arguments(cmd, "REF")
	if err != nil {
		return err
	}
	credential, err := a.credential(ctx, cmd)
	if err != nil {
		return err
	}
	var response *api.RefreshResponse
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) (err error) {
		response, err = c.Refresh(ctx, &api.RefreshRequest{Ref: args[0], Scope: cmd.String("scope"), Credential: credential})
		return err
	})
	if err != nil {
		return hidden(err, credential)
	}
	if err := a.print(cmd, response, func() error { return a.printRefresh(a.style(cmd), response) }); err != nil {
		return err
	}
	return hidden(refreshResult(response), credential)
}

// refreshResult is the exit code that is documented.
func refreshResult(r *api.RefreshResponse) error {
	failed := 0
	for _, one := range r.GetRefreshed() {
		if one.GetError() != "" {
			failed++
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d could not be refreshed", failed, len(r.GetRefreshed()))
	case r.GetChanged():
		return exitError(exitChanged)
	}
	return nil
}

func (a *app) printRefresh(s style, r *api.RefreshResponse) error {
	fmt.Fprintf(a.Out, "%s means %s\n", r.GetRef(), r.GetRegistry().GetDigest())
	if len(r.GetRefreshed()) == 0 {
		return nil
	}
	rows := make([][]string, len(r.GetRefreshed()))
	for i, one := range r.GetRefreshed() {
		what := "image"
		if one.GetScope() != "" {
			what = "pin"
		}
		rows[i] = []string{
			what, orNone(one.GetScope()), targetName(one.GetTarget()), s.digest(one.GetBefore()), s.digest(one.GetAfter()), refreshedText(one),
		}
	}
	return table(a.Out, []string{"WHAT", "SCOPE", "FOR", "BEFORE", "AFTER", "RESULT"}, rows)
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
