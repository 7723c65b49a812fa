package imagepin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Reason is the name of an error, which an operator can search for in logs and documentation.
type Reason string

// The reasons of all errors.
const (
	// InvalidReference: the reference cannot be parsed.
	InvalidReference Reason = "InvalidReference"
	// UnknownRuntimeHandler: the runtime handler in the call is not configured.
	UnknownRuntimeHandler Reason = "UnknownRuntimeHandler"
	// CannotPullImageManifest: the registry did not resolve the reference to a digest, or did not return the manifest.
	CannotPullImageManifest Reason = "CannotPullImageManifest"
	// ManifestPullTimeout: the registry did not answer in time.
	ManifestPullTimeout Reason = "ManifestPullTimeout"
	// PullAccessDenied: the registry rejected the credential, or requires one.
	PullAccessDenied Reason = "PullAccessDenied"
	// NoMatchingPlatform: the index has no manifest for the target.
	NoMatchingPlatform Reason = "NoMatchingPlatform"
	// CannotPullImage: fetching or unpacking failed.
	CannotPullImage Reason = "CannotPullImage"
	// PullStalled: no data was received for image_pull_progress_timeout.
	PullStalled Reason = "PullStalled"
	// PullTimedOut: a pull took longer than pull_timeout.
	PullTimedOut Reason = "PullTimedOut"
	// ContentCorrupt: content from the registry does not match its digest, or is not an image.
	ContentCorrupt Reason = "ContentCorrupt"
	// ContentDamaged: a part of the image on the node differs from its record and could not be fetched again.
	ContentDamaged Reason = "ContentDamaged"
	// SnapshotInUse: files of the image's snapshot are damaged, and cannot be replaced while a container or a mount uses it.
	SnapshotInUse Reason = "SnapshotInUse"
	// SnapshotNotReplaceable: files of the image's snapshot are damaged, and cannot be replaced while other snapshots stand on it.
	SnapshotNotReplaceable Reason = "SnapshotNotReplaceable"
	// ImageVerificationFailed: an image verifier plugin rejected the image, or could not verify it.
	ImageVerificationFailed Reason = "ImageVerificationFailed"
	// ImageNotReady: an image that RunPodSandbox or CreateContainer needs could not be pulled or unpacked for the
	// target.
	ImageNotReady Reason = "ImageNotReady"
	// PinnedDigestGone: the digest that a reference is pinned to is neither in the registry nor on the node.
	PinnedDigestGone Reason = "PinnedDigestGone"
	// PinLimitReached: max_pins_per_namespace is reached.
	PinLimitReached Reason = "PinLimitReached"
	// PinOfNewerRelease: the reference has a pin that this release cannot read and does not overwrite.
	PinOfNewerRelease Reason = "PinOfNewerRelease"
	// RetainLimitReached: max_retained_bytes is reached.
	RetainLimitReached Reason = "RetainLimitReached"
	// InvalidRequest: a request of an operator is invalid.
	InvalidRequest Reason = "InvalidRequest"
	// UnknownImage: the image is not on the node and not pinned.
	UnknownImage Reason = "UnknownImage"
	// ImageInUse: a container uses the image that is to be removed.
	ImageInUse Reason = "ImageInUse"
	// UnknownPin: the pin does not exist.
	UnknownPin Reason = "UnknownPin"
	// NoEarlierDigest: the pin has had no other digest.
	NoEarlierDigest Reason = "NoEarlierDigest"
	// UpstreamNotSynced: containerd's own CRI service (upstream) did not learn about an image in time.
	UpstreamNotSynced Reason = "UpstreamNotSynced"
	// ClusterUnavailable: the Kubernetes API server cannot be reached, did not answer in time, is overloaded, or refuses all
	// requests of this node for ImagePins.
	ClusterUnavailable Reason = "ClusterUnavailable"
	// ClaimRefused: the Kubernetes API server refused a request for an ImagePin, or of the owner of a pod.
	ClaimRefused Reason = "ClaimRefused"
	// ForeignPin: the ImagePin with the name of a revision's pin is that of another revision or image.
	ForeignPin Reason = "ForeignPin"
	// UnknownPod: the Kubernetes API server has no pod with this name and UID, or the node none with this name.
	UnknownPod Reason = "UnknownPod"
	// InvalidLock: a file is not a lock, or contradicts itself.
	InvalidLock Reason = "InvalidLock"
	// InvalidBundle: a file is not a bundle, or is damaged, incomplete or not in order.
	InvalidBundle Reason = "InvalidBundle"
	// NotInBundle: a bundle does not have content that this node needs.
	NotInBundle Reason = "NotInBundle"
	// NotEnoughSpace: the disk has no space for what is to be written.
	NotEnoughSpace Reason = "NotEnoughSpace"
	// NotInLock: a rule allows only images that the node's lock names.
	NotInLock Reason = "NotInLock"
	// LockedReference: the node's lock decides the digest of the reference.
	LockedReference Reason = "LockedReference"
	// UnknownLock: the node has no lock, or none before it.
	UnknownLock Reason = "UnknownLock"
	// ApplyInProgress: the node already applies another lock.
	ApplyInProgress Reason = "ApplyInProgress"
	// ApplyCanceled: a command has canceled the apply.
	ApplyCanceled Reason = "ApplyCanceled"
)

// Error is an error that imagepin itself decides on. The first line of its text says what happened to which reference
// and target. If there is something to do about it, a second line says what. Registries, images and callers control
// parts of the text, so it is never longer than [MaxErrorText].
//
// errors.Is matches both Class and Err.
type Error struct {
	Reason  Reason
	Ref     string // reference or image ID; may be empty
	Target  string // may be empty
	Message string // what happened; may be empty if Err says it
	Hint    string // what to do about it; may be empty
	Class   error  // one of package errdefs
	Err     error  // the cause; may be nil
}

// Limits of the parts of an error's text, in bytes. Together they leave room in MaxErrorText for the prefix of a caller
// and for errors that wrap this one.
const (
	maxErrorRef     = 640 // the longest valid reference with a digest, and an ID
	maxErrorTarget  = 128
	maxErrorMessage = 1280
	maxErrorHint    = 1408 // names references and scopes up to twice
	maxError        = MaxErrorText - 256
)

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Reason))
	if e.Ref != "" {
		b.WriteString(": " + Bound(e.Ref, maxErrorRef))
		if e.Target != "" {
			b.WriteString(" for " + Bound(e.Target, maxErrorTarget))
		}
	}
	if e.Message != "" {
		b.WriteString(": " + Bound(e.Message, maxErrorMessage))
	}
	hint := ""
	if e.Hint != "" {
		hint = "\n" + Bound(e.Hint, maxErrorHint)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(Bound(e.Err.Error(), maxError-b.Len()-len(hint)))
	}
	return b.String() + hint
}

// Unwrap returns the class and the cause.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 2)
	if e.Class != nil {
		errs = append(errs, e.Class)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// Invalid returns an [InvalidRequest] error (ErrInvalidArgument). what names the invalid part of the request, value is
// that part, and why is the cause.
func Invalid(what, value string, why error) error {
	return &Error{
		Reason: InvalidRequest, Class: errdefs.ErrInvalidArgument, Err: why, Message: fmt.Sprintf("%s %q", what, value),
	}
}

// UnknownHandler converts the error of a runtime handler that is not configured to [UnknownRuntimeHandler]
// (ErrInvalidArgument). It returns other errors unchanged.
func UnknownHandler(err error) error {
	var unknown *runtimeplatform.UnknownHandlerError
	if !errors.As(err, &unknown) {
		return err
	}
	return &Error{
		Reason: UnknownRuntimeHandler, Err: err, Class: errdefs.ErrInvalidArgument,
		Hint: `Use one of these, or add the handler to [plugins."io.containerd.cri.v1.runtime".containerd.runtimes].`,
	}
}
