package protect

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Store has the [State] of a cluster as text.
type Store interface {
	// Read returns the text, or "" if there is none.
	Read(ctx context.Context) (string, error)
	// Update changes the text with change, again if another client was first, unless it stays the same.
	Update(ctx context.Context, change func(string) (string, error)) error
}

// Run is a run for one cluster.
type Run struct {
	Cluster Cluster
	// Needs reads what the cluster needs.
	Needs      func(context.Context) (*Needs, error)
	Repository Repositories
	Store      Store
	// Selected reports whether to look at a repository, and to set and delete tags in it.
	Selected func(repository string) bool
	// Grace is how long a tag stays when nothing needs its digest any more.
	Grace time.Duration
	// DryRun reads, and changes nothing.
	DryRun bool
	// Now returns the time.
	Now func() time.Time
}

// List returns the digests that the cluster needs. It sends no request to a registry.
func (r *Run) List(ctx context.Context) (*Report, *Needs, error) {
	needs, err := r.Needs(ctx)
	if err != nil {
		return nil, nil, err
	}
	report := &Report{Cluster: r.Cluster, Unknown: needs.Unknown(r.Selected), Items: []Item{}}
	for _, need := range needs.List() {
		if !r.Selected(need.Repository) {
			report.Excluded++
			continue
		}
		report.Items = append(report.Items, r.item(need, Needed))
	}
	return report, needs, nil
}

// Check looks up the digests that the cluster needs. It changes nothing.
func (r *Run) Check(ctx context.Context) (*Report, *Needs, error) {
	return r.look(ctx, func(ctx context.Context, repo Repository, need Need, _ *Needs) Item { return r.check(ctx, repo, need) })
}

// Protect sets the tags of the digests that the cluster needs, and deletes those of digests that it does not need any more. The
// error is that of the state: without it, no tag is deleted, and the report is complete otherwise.
func (r *Run) Protect(ctx context.Context) (*Report, *Needs, error) {
	var unrecorded error
	report, needs, err := r.lookAfter(ctx, func(needs *Needs) {
		// The tags are recorded before they are set, so that a kill leaves none that the state does not have.
		unrecorded = r.observe(ctx, needs)
	}, r.protect)
	if err != nil || unrecorded != nil {
		return report, needs, unrecordedError(err, unrecorded)
	}
	removed, err := r.removeOld(ctx)
	report.Items = append(report.Items, removed...)
	report.sort()
	return report, needs, err
}

func unrecordedError(err, unrecorded error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("cannot record tags, so that none is deleted: %w", unrecorded)
}

func (r *Run) look(ctx context.Context, each func(context.Context, Repository, Need, *Needs) Item) (*Report, *Needs, error) {
	return r.lookAfter(ctx, func(*Needs) {}, each)
}

// lookAfter calls first with what the cluster needs, and each with each digest and its repository, and reports what that returns.
func (r *Run) lookAfter(ctx context.Context, first func(*Needs), each func(context.Context, Repository, Need, *Needs) Item) (*Report, *Needs, error) {
	report, needs, err := r.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	first(needs)
	selected := slices.DeleteFunc(needs.List(), func(n Need) bool { return !r.Selected(n.Repository) })
	report.Items = append([]Item{}, r.each(ctx, selected, func(ctx context.Context, repo Repository, need Need) Item {
		return each(ctx, repo, need, needs)
	})...)
	report.sort()
	return report, needs, nil
}

// observe records what the cluster needs.
func (r *Run) observe(ctx context.Context, needs *Needs) error {
	if r.DryRun {
		return nil
	}
	return r.update(ctx, func(s *State) { s.observe(needs, r.Selected, r.Now()) })
}

// update changes the state.
func (r *Run) update(ctx context.Context, change func(*State)) error {
	return r.Store.Update(ctx, func(text string) (string, error) {
		s, err := ParseState(text)
		if err != nil {
			return "", err
		}
		change(s)
		return s.Text()
	})
}

// item returns the item of a digest.
func (r *Run) item(need Need, status Status) Item {
	return Item{Repository: need.Repository, Digest: need.Digest.String(), Tag: r.Cluster.Tag(need.Digest), Status: status, UsedBy: need.Users}
}

// oldItem returns the item of a tag whose digest nothing needs.
func (r *Run) oldItem(o old, status Status, reason string) Item {
	since := metav1.NewTime(o.since)
	return Item{Repository: o.repository, Tag: r.Cluster.tag(o.digits), Status: status, Reason: reason, Since: &since, UsedBy: []User{}}
}
