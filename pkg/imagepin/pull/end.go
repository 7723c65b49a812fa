package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// errEnded is what is said of pulls after the end.
var errEnded = fmt.Errorf("imagepin makes no more images ready until containerd is restarted: %w", errdefs.ErrFailedPrecondition)

// End makes every later pull fail with ErrFailedPrecondition, cancels those that
// are under way, also what goes on behind callers that have gone, and waits
// until nothing of them is left.
func (p *Puller) End(ctx context.Context) error {
	return errors.Join(p.pulls.End(ctx, errEnded), p.makes.End(ctx, errEnded))
}
