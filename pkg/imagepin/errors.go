package imagepin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Name is the word by which an operator finds an error in a log and in the
// documentation.
type Reason string

// The names of all errors.
const (
	// InvalidReference: the reference cannot be parsed.
	InvalidReference Reason = "InvalidReference"
	// UnknownRuntimeHandler: the call names a handler that is not configured.
	UnknownRuntimeHandler Reason = "UnknownRuntimeHandler"
	// CannotPullImageManifest: the registry did not say which digest the
	// reference means, or did not give that manifest.
	CannotPullImageManifest Reason = "CannotPullImageManifest"
	// ManifestPullTimeout: the registry did not answer in time.
	ManifestPullTimeout Reason = "ManifestPullTimeout"
	// PullAccessDenied: the registry refused the credential, or refused to
	// do without one.
	PullAccessDenied Reason = "PullAccessDenied"
	// NoMatchingPlatform: the index has no manifest for the target.
	NoMatchingPlatform Reason = "NoMatchingPlatform"
	// CannotPullImage: fetching or unpacking failed.
	CannotPullImage Reason = "CannotPullImage"
	// PullStalled: no byte came for as long as image_pull_progress_timeout.
	PullStalled Reason = "PullStalled"
	// ContentCorrupt: what the registry sent is not what its digest says, or
	// not an image.
	ContentCorrupt Reason = "ContentCorrupt"
	// ContentDamaged: a part of the image on the node is not as it is recorded,
	// and could not be fetched again.
	ContentDamaged Reason = "ContentDamaged"
	// ImageVerificationFailed: an image verifier plugin refused the image.
	ImageVerificationFailed Reason = "ImageVerificationFailed"
	// ImageNotReady: an image that is needed by RunPodSandbox or
	// CreateContainer could not be made ready for the target.
	ImageNotReady Reason = "ImageNotReady"
	// PinnedDigestGone: the digest that a reference is pinned to is neither in
	// the registry nor on the node.
	PinnedDigestGone Reason = "PinnedDigestGone"
	// PinLimitReached: max_pins_per_namespace.
	PinLimitReached Reason = "PinLimitReached"
	// PinOfNewerRelease: the reference has a pin that this release cannot read
	// and does not write over.
	PinOfNewerRelease Reason = "PinOfNewerRelease"
	// RetainLimitReached: max_retained_bytes.
	RetainLimitReached Reason = "RetainLimitReached"
	// InvalidRequest: a request of an operator cannot be read.
	InvalidRequest Reason = "InvalidRequest"
	// UnknownImage: the node has neither a key nor a pin of it.
	UnknownImage Reason = "UnknownImage"
	// UnknownPin: there is no such pin.
	UnknownPin Reason = "UnknownPin"
	// UpstreamNotSynced: the CRI service behind imagepin did not take notice of an
	// image in time.
	UpstreamNotSynced Reason = "UpstreamNotSynced"
)

// Error is every error that imagepin itself decides on. Its text is one line
// that says what happened to which reference and target, and where there is
// something to be done about it, a second line that says what. It is never
// longer than [MaxErrorText], whatever its fields and its cause are: registries,
// images and callers say much of what is in them.
//
// It matches, by errors.Is, the errdefs class it was made with and whatever
// caused it.
type Error struct {
	Reason  Reason
	Ref     string // reference or image ID; may be empty
	Target  string // the target; may be empty
	Message string // what happened; may be empty where Err says it
	Hint    string // what to do about it; may be empty
	Class   error  // one of errdefs
	Err     error  // the cause; may be nil
}

// Limits of the parts of an error's text, in bytes. All together leave room in
// MaxErrorText for what a caller's prefix and errors around this one add.
const (
	maxErrorRef  = 640 // the longest legal reference with a digest, and an ID
	maxErrorFor  = 128
	maxErrorWhat = 1280
	maxErrorDo   = 1408 // names references and scopes up to twice
	maxError     = MaxErrorText - 256
)

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Reason))
	if e.Ref != "" {
		b.WriteString(": " + Bound(e.Ref, maxErrorRef))
		if e.Target != "" {
			b.WriteString(" for " + Bound(e.Target, maxErrorFor))
		}
	}
	if e.Message != "" {
		b.WriteString(": " + Bound(e.Message, maxErrorWhat))
	}
	do := ""
	if e.Hint != "" {
		do = "\n" + Bound(e.Hint, maxErrorDo)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(Bound(e.Err.Error(), maxError-b.Len()-len(do)))
	}
	return b.String() + do
}

// Unwrap gives the class and the cause.
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

// Invalid is an error for a request that cannot be read: what names the part of
// it, value is that part, and why what is wrong with it.
func Invalid(what, value string, why error) error {
	return &Error{
		Reason: InvalidRequest, Class: errdefs.ErrInvalidArgument, Err: why, Message: fmt.Sprintf("%s %q", what, value),
	}
}

// UnknownHandler makes the error of a runtime handler that is not configured an [UnknownRuntimeHandler]
// (ErrInvalidArgument). It leaves other errors as they are.
func UnknownHandler(err error) error {
	var unknown *runtimeplatform.UnknownHandlerError
	if !errors.As(err, &unknown) {
		return err
	}
	return &Error{
		Reason: UnknownRuntimeHandler, Err: err, Class: errdefs.ErrInvalidArgument,
		Hint: `Name one of these, or add it to [plugins."io.containerd.cri.v1.runtime".containerd.runtimes].`,
	}
}
