package decide

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Lock is the lock of the node.
type Lock interface {
	// Names reports whether the lock has an image of a repository by digest: that of its index, or that of the manifest of a
	// platform.
	Names(repository reference.Named, d digest.Digest) bool
	// Copies returns the repositories that the lock has a digest in for a tag of another repository, into which the image was
	// copied.
	Copies(repository reference.Named, d digest.Digest) []reference.Named
	// Digest identifies the lock. It is empty if the node has none.
	Digest() digest.Digest
}

// noLock is the lock of a node that has none.
type noLock struct{}

// Names implements Lock.
func (noLock) Names(reference.Named, digest.Digest) bool { return false }

// Copies implements Lock.
func (noLock) Copies(reference.Named, digest.Digest) []reference.Named { return nil }

// Digest implements Lock.
func (noLock) Digest() digest.Digest { return "" }

// now returns the pin that decides a normalized reference at this moment: that of the node's lock, otherwise the one in a scope.
func (d *Decider) now(ref string, scope policy.Scope) (pin.Pin, bool) {
	if held, locked := d.Locked(ref); locked || scope == "" {
		return held, locked
	}
	return d.pins.Get(pin.ID{Scope: scope, Ref: ref})
}

// onlyUnlocked fails with [imagepin.LockedReference] (ErrFailedPrecondition) if the node's lock decides the digest of a
// reference, or if the scope is that of the lock.
func (d *Decider) onlyUnlocked(ref reference.Named, scope policy.Scope) error {
	if _, locked := d.Locked(ref.String()); locked || scope == policy.LockScope {
		return pin.Locked(ref.String())
	}
	return nil
}

// Locked returns the pin that the node's lock has for a normalized reference.
func (d *Decider) Locked(ref string) (pin.Pin, bool) { return d.pins.OfLock(ref) }

// checkInLock checks that the node's lock names an image, if the rule for its reference requires that. root is the digest of
// the image if it is known, and otherwise empty: then a tag must have a pin of the lock.
//
// With locked = "strict" it fails with [imagepin.NotInLock] (ErrPermissionDenied). With "warn" it logs the use and counts
// it.
func (d *Decider) checkInLock(ctx context.Context, ref reference.Named, root digest.Digest) error {
	rule := d.policy().Rule(ref.String())
	if rule.Locked == policy.LockedOff || d.inLock(ref, root) {
		return nil
	}
	d.notInLock(rule.Locked)
	if rule.Locked == policy.LockedWarn {
		log.G(ctx).WithFields(log.Fields{"ref": ref.String(), "digest": root}).Warn("the image is not in the lock of this node")
		return nil
	}
	return d.notInLockError(ref.String(), root, rule)
}

// idForm is the form of an image ID, or of the beginning of one.
var idForm = regexp.MustCompile(`^[0-9a-f]+$`)

// isImageID reports whether a name is an image ID, or the beginning of one, which containerd's CRI also finds.
func isImageID(name string) bool {
	digits := strings.TrimPrefix(name, digest.Canonical.String()+":")
	return len(digits) <= digest.Canonical.Size()*2 && idForm.MatchString(digits)
}

// checkUnknownInLock is checkInLock for an image that imagepin does not know. name is what the caller named it by.
func (d *Decider) checkUnknownInLock(ctx context.Context, name string) error {
	if ref, err := imagepin.ParseReference(name); err == nil && !isImageID(name) {
		return d.checkInLock(ctx, ref, "")
	}
	if !d.policy().HasStrict() {
		return nil
	}
	d.notInLock(policy.LockedStrict)
	return d.notInLockError(name, "", policy.Rule{})
}

// inLock reports whether the node's lock names a reference, with this digest if it is known.
func (d *Decider) inLock(ref reference.Named, root digest.Digest) bool {
	if held, ok := d.Locked(ref.String()); ok {
		return root == "" || root == held.Root.Digest
	}
	if digested, ok := ref.(reference.Digested); ok && root == "" {
		root = digested.Digest()
	}
	return root != "" && d.lock.Names(ref, root)
}

func (d *Decider) notInLockError(name string, root digest.Digest, rule policy.Rule) error {
	e := &imagepin.Error{
		Reason: imagepin.NotInLock, Ref: name, Class: errdefs.ErrPermissionDenied,
		Hint: "Add it to the lock (imagepin lock) and apply that (imagepin apply). To list what is locked: imagepin lock status",
	}
	which := "the defaults allow"
	if rule.Match != "" {
		which = fmt.Sprintf("the rule %q allows", rule.Match)
	}
	in := "no lock is applied on this node"
	if applied := d.lock.Digest(); applied != "" {
		in = fmt.Sprintf("lock %s does not name it", applied)
		if root != "" {
			in = fmt.Sprintf("lock %s does not name %s", applied, root)
		}
	}
	e.Message = fmt.Sprintf("%s only images of the lock, and %s", which, in)
	return e
}
