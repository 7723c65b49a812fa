package resolve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

var errTimeout = errors.New("the registry did not answer in time")

// timedOut reports whether a host was reached but did not answer within its share of the time.
func timedOut(err error) bool {
	var request *url.Error
	var network *net.OpError
	return errors.As(err, &request) && request.Timeout() && !errors.As(err, &network)
}

// denied returns the error of a request that no host has accepted, if a host refused access, and otherwise nil. It is the
// rule for Resolve and for fetches: err is the error of one host only, which may be another one. The host silent does
// not count.
func (s *Session) denied(err error, silent string) error {
	if refused, ok := s.traffic.refused(silent); ok {
		return deniedError(s.ref, refused, err)
	}
	return nil
}

func deniedError(ref reference.Named, r refusal, err error) error {
	var class error = errdefs.ErrPermissionDenied
	if r.status == http.StatusUnauthorized {
		class = errdefs.ErrUnauthenticated
	}
	host := r.host
	if host != r.registry {
		host += " (the token service of " + r.registry + ")"
	}
	return &imagepin.Error{
		Reason: imagepin.PullAccessDenied, Ref: ref.String(),
		Message: fmt.Sprintf("%s answered %d %s", host, r.status, http.StatusText(r.status)),
		Hint:    "Check the image pull secret of the pod, the service account's imagePullSecrets, and that the credential may read this repository.",
		Class:   class, Err: opaque(err),
	}
}

// opaque returns an error with the text of err and without its class: if several hosts answer differently, it is the
// class of only one of them.
func opaque(err error) error { return errors.New(RedactError(err).Error()) }

func timeoutError(ref reference.Named, timeout time.Duration) error {
	return &imagepin.Error{
		Reason: imagepin.ManifestPullTimeout, Ref: ref.String(),
		Message: fmt.Sprintf("the registry did not resolve the reference within %s", timeout),
		Hint:    "Check the network to the registry and its mirrors, or raise manifest_pull_timeout.",
		Class:   context.DeadlineExceeded, Err: errTimeout,
	}
}

func notAnImageError(ref reference.Named, root ocispec.Descriptor) error {
	// Of a digest without a manifest, containerd's resolver returns the blob.
	if asked, ok := ref.(reference.Canonical); ok && asked.Digest() == root.Digest {
		return &imagepin.Error{
			Reason: imagepin.ContentCorrupt, Ref: ref.String(),
			Message: fmt.Sprintf("the registry has this digest as content of type %q, not as an image index or an image manifest", root.MediaType),
			Hint:    "Use the digest of the index or the manifest, not the image ID: imagepin images --digests",
			Class:   errdefs.ErrFailedPrecondition,
		}
	}
	return &imagepin.Error{
		Reason: imagepin.ContentCorrupt, Ref: ref.String(),
		Message: fmt.Sprintf("the registry answered with %q (%s), which is neither an image index nor an image manifest", root.MediaType, root.Digest),
		Hint:    "Check that the registry's address is correct, and that no proxy or login page answers instead.",
		Class:   errdefs.ErrFailedPrecondition,
	}
}

// resolveError classifies an error of containerd's resolver for a request to these hosts.
func (s *Session) resolveError(err error, asked askedHosts) error {
	e := &imagepin.Error{
		Reason: imagepin.CannotPullImageManifest, Ref: s.ref.String(), Err: RedactError(err),
		Class: errdefs.ErrUnavailable,
		Hint:  "Check the network to the registry and its mirrors.",
	}
	var unexpected remoteserrors.ErrUnexpectedStatus
	var certificate *tls.CertificateVerificationError
	var configuration *configError
	switch {
	case errdefs.IsNotImplemented(err):
		return schema1Error(s.ref, RedactError(err))
	case isTooLarge(err):
		return tooLargeError(s.ref, err)
	case errors.As(err, &configuration):
		e.Hint = "Check the registry's configuration on this node: the directories in config_path, hosts.toml, and the files that it names."
	case errors.As(err, &certificate):
		e.Hint = "Check the registry's certificate, and ca in the registry's hosts.toml."
	case errors.As(err, &unexpected) && unexpected.StatusCode == http.StatusTooManyRequests:
		e.Message = "the registry limits the rate of requests"
		e.Hint = "Wait, or configure a mirror or a credential with a higher limit."
	case errors.As(err, &unexpected) && unexpected.StatusCode < 500:
		e.Class = errdefs.ErrInvalidArgument
		e.Hint = "Check the reference, and that the host is a registry."
	case errdefs.IsNotFound(err) && s.traffic.answered() == "":
		e.Class = errdefs.ErrFailedPrecondition
		e.Message = "no configured host may be used for this request"
		e.Hint = asked.incapableHint()
	case errors.Is(err, docker.ErrInvalidAuthorization):
		e.Reason, e.Class = imagepin.PullAccessDenied, errdefs.ErrUnauthenticated
		e.Hint = "Check the image pull secret of the pod, and that the credential may read this repository."
	case errdefs.IsNotFound(err) && s.unavailable():
	case errdefs.IsNotFound(err):
		e.Class = errdefs.ErrNotFound
		e.Hint = "Check the reference: its registry has no such tag or digest."
	case errdefs.IsInvalidArgument(err), strings.Contains(err.Error(), upstream.InvalidDigest):
		e.Reason, e.Class = imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition
		e.Hint = "Check that the registry's address is correct, and that no proxy or login page answers instead."
	}
	if errdefs.IsUnavailable(e.Class) && slices.Contains(s.traffic.statuses(), http.StatusNotFound) {
		mayBeGone(e, s.traffic.described(), err)
	}
	return e
}

// fetchError classifies an error of a fetch. ctx is the context of the fetch.
func (s *Session) fetchError(ctx context.Context, err error) error {
	if ctx.Err() == nil && strings.Contains(err.Error(), upstream.NoHostAccepted) {
		if denied := s.denied(err, silentHost(err)); denied != nil {
			return denied
		}
	}
	var unexpected remoteserrors.ErrUnexpectedStatus
	status := 0
	if errors.As(err, &unexpected) {
		status = unexpected.StatusCode
	}
	var failed *openError
	var answers []answer
	if errors.As(err, &failed) {
		answers = failed.answers
	}
	e := &imagepin.Error{
		Reason: imagepin.CannotPullImage, Ref: s.ref.String(), Class: errdefs.ErrUnavailable, Err: RedactError(err),
		Hint: "Check the network to the registry and its mirrors, and the registry itself.",
	}
	switch {
	case status == http.StatusTooManyRequests:
		e.Message = "the registry limits the rate of requests"
		e.Hint = "Wait, or configure a mirror or a credential with a higher limit."
	case status >= 500:
	case errdefs.IsNotFound(err) && slices.ContainsFunc(answers, answer.unavailable):
	case errdefs.IsNotFound(err) && s.unavailable(): // a token service
		mayBeGone(e, s.traffic.described(), err)
		return e
	case errdefs.IsNotFound(err) && len(answers) > 0 && !strings.Contains(err.Error(), "://"): // containerd does not name the request
		return RedactError(fmt.Errorf("%w (%s)", err, strings.Join(describeAll(answers), "; ")))
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = "the connection was interrupted, and the download could not be resumed"
	default:
		return RedactError(err)
	}
	if slices.ContainsFunc(answers, func(a answer) bool { return a.status == http.StatusNotFound }) {
		mayBeGone(e, describeAll(answers), err)
	}
	return e
}

// silentHost returns the host that did not answer, if that is the reason for an error. An answer of it belongs to
// another request: it may be the challenge to a concurrent fetch, which is about to get its token.
func silentHost(err error) string {
	var request *url.Error
	if !errors.As(err, &request) {
		return ""
	}
	to, err := url.Parse(request.URL)
	if err != nil {
		return ""
	}
	return to.Host
}

// unavailable reports whether a host did not answer, so that "not found" from another host is not final.
func (s *Session) unavailable() bool { return slices.ContainsFunc(s.traffic.statuses(), isUnavailable) }

// MayBeGone reports whether an error of [Resolver.Resolve] or of a fetch means that a host does not have the content, and
// that another host, which may have it, is unavailable.
func MayBeGone(err error) bool {
	var e undecided
	return errors.As(err, &e)
}

// undecided is the error of a request for content that a host does not have, while another host is unavailable.
type undecided struct{ error }

// mayBeGone completes an error for content that a host does not have, while another host is unavailable. answers are those of
// all hosts.
func mayBeGone(e *imagepin.Error, answers []string, err error) {
	e.Message = "no host has it, and some hosts are unavailable: " + strings.Join(answers, "; ")
	e.Hint = "Check the reference, and the network to the hosts that did not answer."
	e.Err = undecided{opaque(err)}
}
