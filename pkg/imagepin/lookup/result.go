package lookup

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// Outcome is the outcome of a lookup of a pinned digest.
type Outcome string

// The outcomes of a lookup.
const (
	// Present: the registry has the digest.
	Present Outcome = "present"
	// Gone: the registry does not have the digest, and it has accepted the node's credentials for the repository: for the
	// tag in this lookup, or for a pinned digest of the repository before, of which there is a proof.
	Gone Outcome = "gone"
	// NoAccess: the registry does not accept the node's credentials, or it has neither the tag nor the digest and there is
	// no such proof. The digest was not looked up.
	NoAccess Outcome = "no_access"
	// NoAnswer: the registry was not available.
	NoAnswer Outcome = "no_answer"
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{Present, Gone, NoAccess, NoAnswer}

// Result is what is known of a pin from lookups since the start of the process.
type Result struct {
	// At is when the registry was asked last.
	At time.Time
	// Outcome is empty if only the tag was looked up, by a pull.
	Outcome Outcome
	// Since is when the digest was found to be gone first. It is zero for other outcomes.
	Since time.Time
	// Why is the answer of the registry, or why there is none. It is empty if the digest is present.
	Why string

	digest digest.Digest // that was looked up
	proof  string        // that the registry accepted the node's credentials for digest; empty if it has not
}

// maxWhy is the maximum length of [Result.Why], in bytes.
const maxWhy = 512

// Of returns what is known of a pin. ok is false if it was not looked up since the start, or was moved after it.
func (l *Looker) Of(p pin.Pin) (_ Result, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(p)
}

// of is Of for a caller that holds the mutex.
func (l *Looker) of(p pin.Pin) (Result, bool) {
	r, ok := l.results[p.ID]
	if r.digest != p.Root.Digest {
		return Result{}, false
	}
	return r, ok
}

// Gone returns the number of pins whose digest was gone at the last lookup.
func (l *Looker) Gone() (n int) {
	for _, p := range l.config.Pins.List() {
		if r, ok := l.Of(p); ok && r.Outcome == Gone {
			n++
		}
	}
	return n
}

// Round returns when the last round of lookups ended. It is zero before the first one.
func (l *Looker) Round() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// note notes the outcome for a pin as it was read before the registry was asked. It returns what was known before. done is false
// if the pin was removed or moved since.
func (l *Looker) note(read pin.Pin, now Result) (was Result, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, ok := l.config.Pins.Get(read.ID)
	if !ok || held.Root.Digest != read.Root.Digest {
		return Result{}, false
	}
	was, _ = l.of(held)
	if now.Outcome == NoAnswer && was.Outcome == Gone {
		return was, true // it is gone until the registry says otherwise
	}
	now.At, now.digest, now.Why = time.Now(), read.Root.Digest, imagepin.Bound(now.Why, maxWhy)
	if now.Outcome == Gone {
		if now.Since = now.At; was.Outcome == Gone {
			now.Since = was.Since
		}
	}
	if now.proof == "" {
		now.proof = was.proof
	}
	l.results[read.ID] = now
	return was, true
}

// Pulled notes that a pull has resolved a tag to a digest. The pins with another digest have drifted: whether the registry has
// theirs is not known.
func (l *Looker) Pulled(ref string, tag digest.Digest) {
	for _, p := range l.config.Pins.Scopes(ref) {
		now := Result{Outcome: Present}
		if p.Root.Digest != tag {
			if now, _ = l.Of(p); now.Outcome != Gone {
				now = Result{}
			}
		}
		l.note(p, now)
	}
}

// forget removes the results of pins that do not exist any more.
func (l *Looker) forget() {
	pins := make(map[pin.ID]bool)
	for _, p := range l.config.Pins.List() {
		pins[p.ID] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.results {
		if !pins[id] {
			delete(l.results, id)
		}
	}
}
