package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v3"
	"google.golang.org/grpc/status"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// refreshDrifted refreshes every pin that has drifted, in the scopes that the user selects. If one fails, it continues with
// the next.
func (a *app) refreshDrifted(ctx context.Context, cmd *cli.Command) error {
	_, credential, err := a.argumentsAndCredential(ctx, cmd)
	if err != nil {
		return err
	}
	all := &api.RefreshResponses{}
	var failed []error
	err = a.call(ctx, cmd, func(ctx context.Context, c api.ControlClient) error {
		pins, err := driftedPins(ctx, c, scopes(cmd))
		if err != nil {
			return err
		}
		for _, p := range pins {
			r, err := c.Refresh(ctx, &api.RefreshRequest{Ref: p.GetRef(), Scope: p.GetScope(), Credential: credential})
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				failed = append(failed, errors.New(status.Convert(err).Message()))
			default:
				all.Responses = append(all.Responses, r)
			}
		}
		return nil
	})
	if err != nil {
		return redactPassword(err, credential)
	}
	if err := a.print(cmd, all, func() error { return a.printDrifted(a.style(cmd), all, len(failed)) }); err != nil {
		return err
	}
	return redactPassword(errors.Join(append(failed, driftedResult(all, len(failed) > 0))...), credential)
}

// driftedPins returns the pins whose tag has moved and that this node may change: the copies of ImagePins follow the
// cluster.
func driftedPins(ctx context.Context, c api.ControlClient, scope string) ([]*api.Pin, error) {
	all, err := listPins(c, ctx, &api.PinsRequest{Scope: scope})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.GetPins(), func(p *api.Pin) bool { return p.GetDrift() == nil || p.GetMadeBy() == "cluster" }), nil
}

func (a *app) printDrifted(s style, all *api.RefreshResponses, failed int) error {
	if len(all.GetResponses()) == 0 && failed == 0 {
		_, err := fmt.Fprintln(a.Out, "No pin of this node has drifted.")
		return err
	}
	for _, r := range all.GetResponses() {
		if err := a.printRefresh(s, r); err != nil {
			return err
		}
	}
	return nil
}

// driftedResult returns the documented exit code. With failed, the errors decide it.
func driftedResult(all *api.RefreshResponses, failed bool) error {
	var errs []error
	changed := false
	for _, r := range all.GetResponses() {
		err := refreshResult(r)
		if code := exitError(0); errors.As(err, &code) {
			changed = true
		} else if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.GetRef(), err))
		}
	}
	if len(errs) == 0 && !failed && changed {
		return exitError(exitChanged)
	}
	return errors.Join(errs...)
}
