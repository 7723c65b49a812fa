package pull

import (
	"context"
	"fmt"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// makeDurable makes what an image needs durable, and sets its mark: what a record lists must be on the disk before. It covers
// the whole chain of snapshots, because another tool may have unpacked a part of it. The caller holds no lock: the disk may be slow, and
// write what others have written.
//
// If it fails, what was unpacked must not be used again. The kernel reports an error once, and a later sync succeeds.
func (s *Settings) makeDurable(ctx context.Context, e *imagepin.Entry) error {
	if s.Durable == nil {
		e.Durable = ""
		return nil
	}
	var err error
	if e.Durable, err = s.Durable(ctx, e.Target.Snapshotter); err != nil {
		return fmt.Errorf("the image is unpacked in %s but not durable: %w", e.Target.Snapshotter, err)
	}
	return nil
}
