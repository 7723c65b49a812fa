package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Pins has the pins of the node. [pin.Store] implements it.
type Pins interface {
	Get(id pin.ID) (pin.Pin, bool)
	// Scopes returns the pins of a reference.
	Scopes(ref string) []pin.Pin
	List() []pin.Pin
	// RecordDriftSince records the digest of the registry's tag on a pin that was not moved since it was read.
	RecordDriftSince(ctx context.Context, read pin.Pin, now digest.Digest) error
}

// Registry looks up references with the node's credentials. [resolve.Resolver] implements it.
type Registry interface {
	LookUp(ctx context.Context, ref reference.Named) (digest.Digest, error)
}

// Proofs finds proofs, as for package decide.
type Proofs interface {
	// Of returns the proof of a credential for a digest of ref's repository.
	Of(ref reference.Named, c resolve.Credential, root digest.Digest) string
	// Accepted returns the proof that the node has for a digest.
	Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) (proof string, ok bool)
}

// Config has the dependencies of a [Looker]. All fields are required.
type Config struct {
	Pins     Pins
	Registry Registry
	Proofs   Proofs
	// InUse returns the pins that are in use on the node, besides those of its lock.
	InUse func(ctx context.Context) (map[pin.ID]bool, error)
	// LookedUp is called with the outcome of each lookup of a pinned digest, once for all pins of a reference that have it.
	LookedUp func(o Outcome)
	// Gone is called when the digest of a pin is found to be gone.
	Gone func(ctx context.Context, p pin.Pin)
}

// Looker looks up pins. It is safe for concurrent use. What it finds is in memory only.
type Looker struct {
	config Config
	pace   pace
	hosts  pauses

	mu       sync.Mutex
	results  map[pin.ID]Result
	interval time.Duration // for which next was chosen
	next     time.Time     // when the next round begins
	ended    time.Time     // when the last round ended
}

// New returns a Looker that has looked up nothing.
func New(c Config) *Looker { return &Looker{config: c, results: make(map[pin.ID]Result)} }

// Check looks up pins now, one reference after the other. A registry that does not answer is not asked again for the others, and
// one that has asked for a pause is not asked before it ends. Check fails only if ctx ends.
func (l *Looker) Check(ctx context.Context, pins []pin.Pin) error {
	begun := time.Now()
	for _, ref := range references(pins) {
		if wait, ok := l.hosts.untilFor(registryOf(ref), begun); ok {
			why := fmt.Sprintf("the registry was not available, it is not asked before %s", wait.UTC().Format(time.RFC3339))
			for _, p := range of(pins, ref) {
				l.note(p, Result{Outcome: NoAnswer, Why: why})
			}
			continue
		}
		_ = l.look(ctx, ref, func(p pin.Pin) bool { return slices.ContainsFunc(pins, func(o pin.Pin) bool { return o.ID == p.ID }) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// look looks up the tag of a reference, and the digests of its pins that are wanted and that the tag does not have. It fails if the
// registry was not available.
func (l *Looker) look(ctx context.Context, ref string, wanted func(pin.Pin) bool) error {
	tag, err := reference.ParseNamed(ref)
	if err != nil {
		return nil // pins have no such reference
	}
	read := l.config.Pins.Scopes(ref)
	if !slices.ContainsFunc(read, wanted) {
		return nil
	}
	now, err := l.ask(ctx, tag)
	if ctx.Err() != nil {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(read), func(p pin.Pin) bool { return !wanted(p) })
	if err != nil && !errdefs.IsNotFound(err) {
		l.conclude(ctx, rest, failed(err))
		return unavailable(err)
	}
	if err == nil {
		for _, p := range read {
			if err := l.config.Pins.RecordDriftSince(ctx, p, now); err != nil {
				log.G(ctx).WithError(err).WithField("ref", ref).Warn("failed to record the drift of a pin")
			}
		}
		has := func(p pin.Pin) bool { return p.Root.Digest == now }
		l.conclude(ctx, slices.DeleteFunc(read, func(p pin.Pin) bool { return !has(p) }), Result{Outcome: Present, proof: l.proof(tag, now)})
		rest = slices.DeleteFunc(rest, has)
	}
	return l.lookDigests(ctx, tag, rest, err)
}

// lookDigests looks up the digests of pins of one reference. tagErr is nil if the registry has resolved the tag.
func (l *Looker) lookDigests(ctx context.Context, tag reference.Named, pins []pin.Pin, tagErr error) error {
	for len(pins) > 0 {
		root := pins[0].Root.Digest
		byDigest, err := reference.WithDigest(reference.TrimNamed(tag), root)
		if err != nil {
			return nil // as in look
		}
		_, err = l.ask(ctx, byDigest)
		if ctx.Err() != nil {
			return nil
		}
		result := Result{Outcome: Present}
		switch {
		case err == nil:
			result.proof = l.proof(tag, root)
		case errdefs.IsNotFound(err) && (tagErr == nil || l.proved(tag)):
			result = Result{Outcome: Gone, Why: err.Error()}
		case errdefs.IsNotFound(err):
			result = Result{Outcome: NoAccess, Why: "the registry answered that it has neither the tag nor the digest, as many do for a repository that the credential may not read"}
		default:
			result = failed(err)
		}
		has := func(p pin.Pin) bool { return p.Root.Digest == root }
		l.conclude(ctx, slices.DeleteFunc(slices.Clone(pins), func(p pin.Pin) bool { return !has(p) }), result)
		if err := unavailable(err); err != nil {
			for _, p := range slices.DeleteFunc(pins, has) {
				l.note(p, result)
			}
			return err
		}
		pins = slices.DeleteFunc(pins, has)
	}
	return nil
}

// ask sends a lookup, not before its turn, and notes whether the registry was available.
func (l *Looker) ask(ctx context.Context, ref reference.Named) (digest.Digest, error) {
	if err := l.pace.wait(ctx); err != nil {
		return "", err
	}
	d, err := l.config.Registry.LookUp(ctx, ref)
	if ctx.Err() == nil {
		l.hosts.note(reference.Domain(ref), unavailable(err))
	}
	return d, err
}

// conclude notes the result of a lookup for pins with the same digest, as they were read before, and reports it.
func (l *Looker) conclude(ctx context.Context, pins []pin.Pin, r Result) {
	if len(pins) > 0 {
		l.config.LookedUp(r.Outcome)
	}
	for _, p := range pins {
		was, ok := l.note(p, r)
		switch {
		case !ok || was.Outcome == r.Outcome:
		case r.Outcome == Gone:
			l.config.Gone(ctx, p)
		case r.Outcome == Present && was.Outcome == Gone:
			log.G(ctx).WithFields(log.Fields{"ref": p.Ref, "scope": string(p.Scope), "digest": p.Root.Digest}).Info("the registry has the digest of a pin again")
		}
	}
}

// failed returns the result of a lookup that failed.
func failed(err error) Result {
	var known *imagepin.Error
	if errors.As(err, &known) && known.Reason == imagepin.PullAccessDenied {
		return Result{Outcome: NoAccess, Why: known.Message}
	}
	return Result{Outcome: NoAnswer, Why: err.Error()}
}

// unavailable returns err if it means that the registry was not available, and otherwise nil.
func unavailable(err error) error {
	var busy *resolve.Busy
	if errors.As(err, &busy) || resolve.Unavailable(err) {
		return err
	}
	return nil
}

// proof returns the proof that the registry accepts the node's credentials for a digest.
func (l *Looker) proof(ref reference.Named, root digest.Digest) string {
	return l.config.Proofs.Of(ref, resolve.Credential{}, root)
}

// proved reports whether a registry has accepted the node's current credentials for a digest of ref's repository: in a pull, or in a
// lookup since the start.
func (l *Looker) proved(ref reference.Named) bool {
	return slices.ContainsFunc(l.config.Pins.List(), func(p pin.Pin) bool {
		if !strings.HasPrefix(p.Ref, ref.Name()+":") {
			return false
		}
		if _, ok := l.config.Proofs.Accepted(ref, resolve.Credential{}, p.Root.Digest); ok {
			return true
		}
		r, ok := l.Of(p)
		return ok && r.proof == l.proof(ref, p.Root.Digest)
	})
}

// references returns the references of pins, in their order.
func references(pins []pin.Pin) (refs []string) {
	for _, p := range pins {
		if !slices.Contains(refs, p.Ref) {
			refs = append(refs, p.Ref)
		}
	}
	return refs
}

// of returns the pins of a reference.
func of(pins []pin.Pin, ref string) []pin.Pin {
	return slices.DeleteFunc(slices.Clone(pins), func(p pin.Pin) bool { return p.Ref != ref })
}

// registryOf returns the registry of a reference.
func registryOf(ref string) string {
	host, _, _ := strings.Cut(ref, "/")
	return host
}
