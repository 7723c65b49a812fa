package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/apply"
	"github.com/imagepin/imagepin/pkg/imagepin/control"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Applier applies locks. [apply.Applier] implements it.
type Applier interface {
	Apply(ctx context.Context, r apply.Request) (apply.Result, error)
	ApplyDropped(ctx context.Context, r apply.Request, again bool) (apply.Result, error)
	Rollback(ctx context.Context, r apply.Request) (apply.Result, error)
	// Cancel ends the apply that is running, and reports whether one was.
	Cancel(ctx context.Context) (bool, error)
	Remove(ctx context.Context, onlyPrevious bool) (apply.Result, error)
	// Detach runs a function that goes on when the caller has gone. Status has its error.
	Detach(ctx context.Context, run func(context.Context) error) error
	Status() apply.Status
	Usage(ctx context.Context) (apply.Usage, error)
}

// Server has the calls of the control service for locks. It implements [control.Locks].
type Server struct{ applier Applier }

// NewServer returns a Server.
func NewServer(a Applier) *Server { return &Server{a} }

// send sends a message to the caller.
type send = func(*api.ApplyResponse) error

// Apply implements the API.
func (s *Server) Apply(ctx context.Context, r *api.ApplyRequest, to send) error {
	return applying(ctx, to, func(ctx context.Context, progress func(apply.Progress)) (*apply.Result, error) {
		q := apply.Request{
			Handlers: r.GetHandlers(), AllHandlers: r.GetAllHandlers(), Credential: control.Credential(r.GetCredential()), BytesPerSecond: r.GetBytesPerSecond(),
			DryRun: r.GetDryRun(), Progress: progress,
		}
		run, closeFile, err := s.applyFunc(r, q)
		if err != nil {
			return nil, err
		}
		if !r.GetDetach() {
			defer closeFile()
			result, err := run(ctx)
			return &result, err
		}
		return nil, s.detach(ctx, run, closeFile)
	})
}

// detach runs an apply that goes on when the caller has gone. LockStatus has its error.
func (s *Server) detach(ctx context.Context, run func(context.Context) (apply.Result, error), closeFile func()) error {
	err := s.applier.Detach(ctx, func(ctx context.Context) error {
		defer closeFile()
		_, err := run(ctx)
		return err
	})
	if err != nil {
		closeFile() // it does not run
	}
	return err
}

// applyFunc returns the function that applies what a request names. It opens the file, so that the caller learns whether it is
// a lock or a bundle. closeFile closes it.
func (s *Server) applyFunc(r *api.ApplyRequest, q apply.Request) (run func(context.Context) (apply.Result, error), closeFile func(), _ error) {
	closeFile = func() {}
	given := 0
	for _, has := range []bool{len(r.GetLock()) > 0, r.GetPath() != "", r.GetDropped()} {
		if has {
			given++
		}
	}
	if given != 1 {
		return nil, nil, imagepin.Invalid("request", "Apply", errors.New("has to have either a lock, or a path, or the drop directories"))
	}
	if r.GetAllHandlers() && len(r.GetHandlers()) > 0 {
		return nil, nil, imagepin.Invalid("request", "Apply", errors.New("has both runtime handlers and all of them"))
	}
	if r.GetDetach() {
		q.Progress = nil
	}
	switch {
	case r.GetDropped():
		return func(ctx context.Context) (apply.Result, error) {
			return s.applier.ApplyDropped(ctx, q, true)
		}, closeFile, nil
	case r.GetPath() != "":
		return s.applyFile(r.GetPath(), q)
	}
	q.Name = imagepin.Bound(filepath.Base(r.GetName()), maxName)
	l, err := lock.Parse(r.GetLock())
	if err != nil {
		return nil, nil, named(err, q.Name)
	}
	q.Lock = l
	return func(ctx context.Context) (apply.Result, error) { return s.applier.Apply(ctx, q) }, closeFile, nil
}

// named returns an error with the name of the file that it is about.
func named(err error, file string) error {
	var known *imagepin.Error
	if errors.As(err, &known) {
		known.Message = file + ": " + known.Message
	}
	return err
}

// maxName is the maximum length of the name of a file, in bytes.
const maxName = 255

func (s *Server) applyFile(path string, q apply.Request) (run func(context.Context) (apply.Result, error), closeFile func(), _ error) {
	if !filepath.IsAbs(path) {
		return nil, nil, imagepin.Invalid("path", path, errors.New("is not absolute"))
	}
	f, err := apply.Open(path)
	if err != nil {
		return nil, nil, err
	}
	from := f.Request()
	q.Lock, q.Bundle, q.Name = from.Lock, from.Bundle, from.Name
	run = func(ctx context.Context) (apply.Result, error) { return s.applier.Apply(ctx, q) }
	return run, func() { _ = f.Close() }, nil // it was only read
}

// CancelApply implements the API.
func (s *Server) CancelApply(ctx context.Context, _ *api.CancelApplyRequest) (*api.CancelApplyResponse, error) {
	canceled, err := s.applier.Cancel(ctx)
	if err != nil {
		return nil, err
	}
	return &api.CancelApplyResponse{Canceled: canceled}, nil
}

// Rollback implements the API.
func (s *Server) Rollback(ctx context.Context, r *api.RollbackRequest, to send) error {
	return applying(ctx, to, func(ctx context.Context, progress func(apply.Progress)) (*apply.Result, error) {
		result, err := s.applier.Rollback(ctx, apply.Request{
			Credential: control.Credential(r.GetCredential()), BytesPerSecond: r.GetBytesPerSecond(), Progress: progress,
		})
		return &result, err
	})
}

// applyEvery is how often the progress of an apply is sent.
const applyEvery = 100 * time.Millisecond

// applying runs a call that applies a lock, and sends its progress and its result.
func applying(ctx context.Context, to send, run func(context.Context, func(apply.Progress)) (*apply.Result, error)) error {
	p := sendProgress(to)
	defer p.close() // also after a panic
	result, err := run(ctx, p.report)
	p.close()
	if err != nil || result == nil {
		return err
	}
	return to(&api.ApplyResponse{Result: applyResult(*result)})
}

// applyProgress sends progress at intervals, and each new phase. An apply does not wait for a caller that does not receive.
type applyProgress struct {
	queue chan apply.Progress
	sent  chan struct{} // closed when all of the queue is sent
	end   sync.Once

	mu   sync.Mutex
	at   time.Time
	last apply.Phase
}

// maxQueued is the maximum number of messages that wait until the caller receives them.
const maxQueued = 16

func sendProgress(to send) *applyProgress {
	p := &applyProgress{queue: make(chan apply.Progress, maxQueued), sent: make(chan struct{})}
	go func() {
		defer close(p.sent)
		for now := range p.queue {
			_ = to(&api.ApplyResponse{Progress: progressOf(now)}) // the context ends if the caller has gone
		}
	}()
	return p
}

func (p *applyProgress) report(now apply.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Phase == p.last && time.Since(p.at) < applyEvery {
		return
	}
	p.at, p.last = time.Now(), now.Phase
	select {
	case p.queue <- now:
	default:
	}
}

// close waits until all is sent. report must not be called any more.
func (p *applyProgress) close() {
	p.end.Do(func() { close(p.queue) })
	<-p.sent
}

func progressOf(p apply.Progress) *api.ApplyProgress {
	return &api.ApplyProgress{Phase: string(p.Phase), Lock: p.Lock.String(), Done: p.Done, Total: p.Total, Ref: p.Ref}
}

func applyResult(r apply.Result) *api.ApplyResult {
	return &api.ApplyResult{Lock: r.Lock.String(), Previous: r.Previous.String(), Images: int64(r.Images), Locked: int64(r.Locked), MadeReady: int64(r.MadeReady), Handlers: r.Handlers, Changes: lockChanges(r.Changes)}
}

func lockChanges(all []apply.Change) (changes []*api.LockChange) {
	for _, c := range all {
		changes = append(changes, &api.LockChange{Ref: c.Ref, Before: c.Before.String(), After: c.After.String()})
	}
	return changes
}

// maxEventChanges is the maximum number of changes in the event of a lock.
const maxEventChanges = 100

// LockEvent returns the event that the lock of the node has changed.
func LockEvent(r apply.Result) *api.LockEvent {
	return &api.LockEvent{
		Lock: r.Lock.String(), Previous: r.Previous.String(), Changed: int64(len(r.Changes)),
		Changes: lockChanges(r.Changes[:min(len(r.Changes), maxEventChanges)]),
	}
}

// RemoveLock implements the API.
func (s *Server) RemoveLock(ctx context.Context, r *api.RemoveLockRequest) (*api.RemoveLockResponse, error) {
	result, err := s.applier.Remove(ctx, r.GetPrevious())
	if err != nil {
		return nil, err
	}
	return &api.RemoveLockResponse{Result: applyResult(result)}, nil
}

// LockStatus implements the API.
func (s *Server) LockStatus(ctx context.Context, _ *api.LockStatusRequest) (*api.LockStatusResponse, error) {
	st := s.applier.Status()
	used, err := s.applier.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return lockStatus(st, used), nil
}

func lockStatus(st apply.Status, used apply.Usage) *api.LockStatusResponse {
	resp := &api.LockStatusResponse{Lock: lockOf(st.Current), Previous: lockOf(st.Previous), Counts: &api.LockCounts{}}
	if st.Applying != nil {
		resp.Applying = progressOf(*st.Applying)
	}
	if f := st.Failed; f != nil {
		resp.Failed = &api.LockFailure{At: timestamppb.New(f.At), Name: f.Name, Error: errorText(f.Err)}
	}
	if st.Unreadable != nil {
		resp.Unreadable = errorText(st.Unreadable)
	}
	for _, i := range st.Images {
		resp.Images = append(resp.Images, lockedImage(i, used.Running[i.Ref.String()], resp.Counts))
	}
	for _, e := range used.Extra {
		resp.Extra = append(resp.Extra, &api.ExtraImage{ImageId: e.ImageID.String(), Digest: e.Digest.String(), Refs: e.Refs, Containers: int64(e.Containers)})
	}
	for _, d := range used.Drifted {
		resp.Drifted = append(resp.Drifted, &api.DriftedContainer{
			Namespace: d.Namespace, Pod: d.Pod, Container: d.Name, Ref: d.Ref, Locked: d.Locked.String(), Digest: d.Digest.String(), ImageId: d.ImageID.String(),
		})
	}
	resp.Counts.Extra, resp.Counts.Drifted = int64(len(resp.Extra)), int64(len(resp.Drifted))
	return resp
}

// errorText returns the text of an error without secrets, as valid UTF-8: it can name a file.
func errorText(err error) string {
	return strings.ToValidUTF8(resolve.RedactError(err).Error(), "\uFFFD")
}

func lockedImage(i apply.ImageStatus, containers int, c *api.LockCounts) *api.LockedImage {
	a := &api.LockedImage{
		Ref: i.Name().String(), Digest: i.Ref.Digest().String(), Id: i.ID, State: "ready", Containers: int64(containers),
		Ready: targets(i.Ready), Missing: targets(i.Missing),
	}
	c.Locked++
	if containers > 0 {
		a.State = "running"
		c.Running++
	}
	if len(i.Missing) > 0 {
		a.State = "missing"
		c.Missing++
	} else {
		c.Ready++
	}
	return a
}

func targets(all []runtimeplatform.Target) (converted []*api.Target) {
	for _, t := range all {
		converted = append(converted, control.Target(t))
	}
	return converted
}

func lockOf(a *applied.Applied) *api.Lock {
	if a == nil {
		return nil
	}
	return &api.Lock{
		Digest: a.Digest.String(), Name: a.Name, Bundle: a.Bundle, AppliedAt: timestamppb.New(a.At), Images: int64(len(a.Lock.Images)),
		Handlers: slices.Clone(a.Handlers),
	}
}

// LockSummary returns the state of a lock in numbers. It is nil if the node has no lock and no apply has failed.
func LockSummary(st apply.Status) *api.LockSummary {
	sum := &api.LockSummary{Images: int64(len(st.Images)), DriftedContainers: st.DriftedContainers}
	switch {
	case st.Unreadable != nil:
		sum.Failed = errorText(st.Unreadable)
	case st.Failed != nil:
		sum.Failed = errorText(st.Failed.Err)
	case st.Current == nil:
		return nil
	}
	if st.Current != nil {
		sum.Digest, sum.AppliedAt = st.Current.Digest.String(), timestamppb.New(st.Current.At)
	}
	for _, i := range st.Images {
		if len(i.Missing) == 0 {
			sum.Ready++
		}
	}
	return sum
}
