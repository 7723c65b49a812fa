package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// failure is an error of a request, and what it means for other calls.
type failure struct {
	err   *imagepin.Error
	scope scope
	// late is true if there was no time left. A caller with more time might have succeeded.
	late bool
	// again is true if the call can succeed on another connection.
	again bool
	// reconnect is true if later calls need another connection.
	reconnect bool
}

// Error implements error.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns the error.
func (f *failure) Unwrap() error { return f.err }

// onOther reports whether the call can succeed on another connection. It is false for nil.
func (f *failure) onOther() bool { return f != nil && f.again }

// scope is which calls an error concerns.
type scope int

const (
	thisCall scope = iota
	pinCalls       // Find and Claim
	allCalls
)

// request is the kind of a request, as far as errors differ.
type request int

const (
	general request = iota
	getUser
	findPin
	createPin
)

const (
	installHint     = "Apply contrib/kubernetes/cluster, which installs ImagePins and allows nodes to get and create them."
	credentialHint  = "Check that the credential in the kubeconfig is valid, and that the clock of the node is right."
	unavailableHint = "Check the API server, the network to it, and https_proxy and no_proxy in the environment of containerd."
)

// namespaceTerminating is a cause in the details of a Status (NamespaceTerminatingCause in k8s.io/api/core/v1).
const namespaceTerminating metav1.CauseType = "NamespaceTerminating"

// explain returns what an error of a request means. doing is what the request was for.
func (s *session) explain(err error, doing string, kind request) *failure {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return s.noAnswer(err, doing)
	}
	code := answer.Status().Code
	e := &imagepin.Error{
		Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable, Message: doing, Err: s.answer(answer.Status()),
	}
	f := &failure{err: e}
	switch {
	case code == http.StatusUnauthorized:
		f.scope, f.again, f.reconnect, e.Hint = allCalls, true, true, credentialHint
	case code == http.StatusForbidden && kind == findPin:
		// A get has no admission, so the node has no permission to get any ImagePin.
		f.scope, e.Hint = pinCalls, installHint
	case code == http.StatusNotFound && (kind == findPin || kind == createPin) && notServed(err):
		f.scope, e.Hint = pinCalls, installHint
		e.Err = fmt.Errorf("the API server %s does not serve ImagePins", s.server)
	case code == http.StatusTooManyRequests:
		// The FlowSchema has a priority level for ImagePins, so other requests are not limited with them.
		if f.scope, f.late = allCalls, true; kind == findPin || kind == createPin {
			f.scope = pinCalls
		}
		e.Hint = "The API server limits requests: check its load, and the FlowSchema in contrib/kubernetes/cluster."
	case code == http.StatusForbidden && apierrors.HasStatusCause(err, namespaceTerminating):
		// Nothing is to be done about it: the pods are deleted, too.
	case code == http.StatusConflict:
		// Another request was faster.
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && !notServed(err):
		// Authorization, admission or validation refused this request.
		if kind == getUser {
			e.Hint = credentialHint
			break
		}
		e.Reason, e.Class = imagepin.ClaimRefused, errdefs.ErrPermissionDenied
	default: // also redirects, and answers that are not from an API server
		f.scope, f.reconnect, e.Hint = allCalls, true, unavailableHint
	}
	return f
}

// answer returns the answer of the API server as an error. The text of admission policies is in the message.
func (s *session) answer(status metav1.Status) error {
	text := fmt.Sprintf("the API server %s answered %d %s", s.server, status.Code, http.StatusText(int(status.Code)))
	if status.Message != "" {
		text += ": " + imagepin.Bound(status.Message, imagepin.MaxLogText)
	}
	if wait, ok := retryAfter(&apierrors.StatusError{ErrStatus: status}); ok {
		text += fmt.Sprintf(" (try again in %s)", wait)
	}
	return errors.New(text)
}

// noAnswer is explain for an error without an answer of an API server.
func (s *session) noAnswer(err error, doing string) *failure {
	if errors.Is(err, errTooLarge) { // of a pod or an ImagePin that a tenant has made
		return &failure{err: &imagepin.Error{
			Reason: imagepin.ClaimRefused, Class: errdefs.ErrPermissionDenied, Message: doing, Err: errTooLarge,
		}}
	}
	lost, late := connectionLost(err), errors.Is(err, context.DeadlineExceeded)
	// A url.Error has the method and the URL, which say no more than doing.
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	what := "is unavailable"
	if late {
		what = "did not answer in time"
	}
	return &failure{
		err: &imagepin.Error{
			Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable, Message: doing, Hint: unavailableHint,
			Err: fmt.Errorf("the API server %s %s: %w", s.server, what, withoutPasswords(err)),
		},
		scope: allCalls, late: late, again: lost, reconnect: true,
	}
}

// userInfo matches the user name and the password in a URL.
var userInfo = regexp.MustCompile(`//[^/@\s"]*@`)

// withoutPasswords returns err with a text without the user names and passwords of URLs.
func withoutPasswords(err error) error {
	return cleaned{userInfo.ReplaceAllString(err.Error(), "//"), err}
}

type cleaned struct {
	text string
	err  error
}

// Error implements error.
func (c cleaned) Error() string { return c.text }

// Unwrap returns the error.
func (c cleaned) Unwrap() error { return c.err }

// paused returns the error of a call that is not made because of an earlier failure.
func paused(f *failure) error {
	e := *f.err
	e.Message = "no request was sent so soon after a failure"
	return &e
}

// withRef returns err with a reference.
func withRef(err error, ref string) error {
	var e *imagepin.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Ref = ref
	return &c
}

// connectionLost reports whether an existing connection was lost, for example because the API server has restarted.
func connectionLost(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) ||
		utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) {
		return true
	}
	// net/http does not export these errors (errClientConnClosed and GoAwayError in http2/transport.go). The first one is
	// that of a request whose body is being sent.
	return strings.Contains(err.Error(), "http2: client conn is closed") || strings.Contains(err.Error(), "http2: server sent GOAWAY")
}

// serverFailed reports whether the API server answered 5xx. It may have carried out the request.
func serverFailed(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code >= http.StatusInternalServerError
}

// notServed reports whether an error with the code 404 is about the resource, not about an object of it: it has no Status
// of the resource's handler.
func notServed(err error) bool { return apierrors.IsUnexpectedServerError(err) }

// absent reports whether an object does not exist.
func absent(err error) bool { return apierrors.IsNotFound(err) && !notServed(err) }
