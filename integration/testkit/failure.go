package testkit

import (
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/imagepin/imagepin/integration/images"
)

// The failures of several tests.
var (
	Unauthenticated     = Failure{Name: "PullAccessDenied", Code: codes.Unauthenticated}
	Forbidden           = Failure{Name: "PullAccessDenied", Code: codes.PermissionDenied}
	NoSuchImage         = Failure{Name: "CannotPullImageManifest", Code: codes.NotFound}
	ManifestUnavailable = Failure{Name: "CannotPullImageManifest", Code: codes.Unavailable, Prefix: "RegistryUnavailable"}
	ImageUnavailable    = Failure{Name: "CannotPullImage", Code: codes.Unavailable, Prefix: "RegistryUnavailable"}
	ImageIncomplete     = Failure{Name: "CannotPullImage", Code: codes.NotFound}
	Corrupt             = Failure{Name: "ContentCorrupt", Code: codes.FailedPrecondition}
	Stalled             = Failure{Name: "PullStalled", Code: codes.DeadlineExceeded, Prefix: "RegistryUnavailable"}
	NoMatchingPlatform  = Failure{Name: "NoMatchingPlatform", Code: codes.NotFound}
)

// Failure describes an error of a CRI call.
type Failure struct {
	Name string     // the text begins with it
	Code codes.Code // the class, which is also the status code unless there is a prefix
	// Prefix is a word that kubelet recognizes. The text begins with it, and the status code is Unknown.
	Prefix string
}

// TargetOf returns the target of a handler of these tests, as error messages name it.
func TargetOf(handler string) string {
	switch handler {
	case "native":
		return images.HostPlatform() + " on native"
	case "arm":
		return "linux/arm64 on overlayfs"
	case "foreign":
		return "linux/s390x on overlayfs"
	}
	return images.HostPlatform() + " on overlayfs"
}

// Check fails the test unless err is the failure f of ref for target and has a hint.
func (f Failure) Check(t *testing.T, err error, ref, target string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s for %s: no error instead of %s", ref, target, f.Name)
		return
	}
	s := status.Convert(err)
	text, code := s.Message(), f.Code
	if f.Prefix != "" {
		code = codes.Unknown
		var ok bool
		if text, ok = strings.CutPrefix(text, f.Prefix+": "); !ok {
			t.Errorf("the error does not begin with %s: %v", f.Prefix, err)
		}
	}
	if s.Code() != code {
		t.Errorf("code %s, not %s: %v", s.Code(), code, err)
	}
	what, do, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(what, f.Name+": ") || !strings.Contains(what, ref) || !strings.Contains(what, target) {
		t.Errorf("the first line does not begin with %q or does not name %s and %q: %v", f.Name, ref, target, err)
	}
	if len(strings.TrimSpace(do)) == 0 {
		t.Errorf("the error has no hint: %v", err)
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.Reason != f.Name || info.Metadata["class"] != f.Code.String() {
				t.Errorf("details %v, not reason %s and class %s: %v", info, f.Name, f.Code, err)
			}
			return
		}
	}
	t.Errorf("the error has no details: %v", err)
}

// WantCode fails the test unless err of a call of the control service has a code and contains these words.
func WantCode(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("code %s, not %s: %v", status.Code(err), code, err)
	}
	for _, word := range words {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not contain %q: %v", word, err)
		}
	}
}
