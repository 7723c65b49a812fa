package main

import "context"

// without is the second step.
func (d *demo) without(ctx context.Context) error {
	if err := d.push(ctx, "v1"); err != nil {
		return err
	}
	err := d.interrupted(ctx, "1", "v2", func() error { return d.kube.Do(ctx, "POST", deployments, d.deployment(), nil) })
	if err != nil {
		return err
	}
	if err := d.builds(ctx, "1", "v1", "v2", "v2"); err != nil {
		return err
	}
	return d.drift(ctx, drifts)
}

// with is the fourth step.
func (d *demo) with(ctx context.Context) error {
	d.say("   The Deployment rolls out another revision, as with kubectl rollout restart.")
	if err := d.interrupted(ctx, "2", "v3", func() error { return d.roll(ctx, "2") }); err != nil {
		return err
	}
	if err := d.builds(ctx, "2", "v2", "v2", "v2"); err != nil {
		return err
	}
	if err := d.drift(ctx, 0); err != nil {
		return err
	}
	return d.list(ctx)
}

// undo is the fifth step.
func (d *demo) undo(ctx context.Context) error {
	if err := d.roll(ctx, "3"); err != nil {
		return err
	}
	d.say("   The next revision resolves the tag again:")
	if err := d.builds(ctx, "3", "v3", "v3", "v3"); err != nil {
		return err
	}
	if err := d.push(ctx, "v4"); err != nil {
		return err
	}
	if err := d.roll(ctx, "2"); err != nil {
		return err
	}
	d.say("   The tag moves to v4, and the template of the earlier revision is applied, as with kubectl rollout undo. Its ImagePin still has v2:")
	if err := d.builds(ctx, "2", "v2", "v2", "v2"); err != nil {
		return err
	}
	return d.list(ctx)
}
