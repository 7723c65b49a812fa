package resolve

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// withTokens makes a registry require a token of a token service on another server.
func withTokens(t *testing.T, r *registry, service http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(service)
	t.Cleanup(s.Close)
	r.answer = func(w http.ResponseWriter, req *http.Request) bool {
		if req.Header.Get("Authorization") == "Bearer t" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:team/app:pull"`, s.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	return s
}

// token issues a token to every caller.
func token(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"token": "t", "access_token": "t", "expires_in": 300})
}

// statusOnly returns a handler that answers with a status code.
func statusOnly(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// cut closes the connection without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

var tokenServices = []struct {
	name    string
	service http.HandlerFunc // nil if the service does not listen
	error   imagepin.Reason  // of Resolve, or ""
	class   error
}{
	{"issues tokens", token, "", nil},
	{"not listening", nil, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"closes the connection", cut, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"500", statusOnly(500), imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"502", statusOnly(502), imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"503", statusOnly(503), imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"429", statusOnly(429), imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
	{"401", statusOnly(401), imagepin.PullAccessDenied, errdefs.ErrUnauthenticated},
	{"403", statusOnly(403), imagepin.PullAccessDenied, errdefs.ErrPermissionDenied},
	// Other errors of the service mean that the request is not authorized.
	{"400", statusOnly(400), imagepin.PullAccessDenied, errdefs.ErrUnauthenticated},
	{"404", statusOnly(404), imagepin.PullAccessDenied, errdefs.ErrUnauthenticated},
	{"no token", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, struct{}{}) }, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated},
}

var tokenCredentials = map[string]Credential{"nobody": {}, "user": {Username: "u", Password: "hush"}, "identity token": {IdentityToken: "hush"}}

// TestTokenServices checks that an unavailable token service counts as an unavailable registry, and a token service
// that denies access as a registry that denies access.
func TestTokenServices(t *testing.T) {
	for _, c := range tokenServices {
		for who, credential := range tokenCredentials {
			t.Run(c.name+" "+who, func(t *testing.T) {
				a := newRegistry(t)
				s := withTokens(t, a, c.service)
				if c.service == nil {
					s.Close()
				}
				r := newResolver(t, server(a))
				_, err := r.Resolve(quiet(t), named(t, ref), credential)
				checkError(t, err, c.error, c.class)
				if unavailable := c.class == errdefs.ErrUnavailable; Unavailable(err) != unavailable {
					t.Errorf("Unavailable: got %v, want %v", !unavailable, unavailable)
				}
				tokens := strings.TrimPrefix(s.URL, "http://")
				if text := fmt.Sprintf("%s (the token service of %s) answered %s", tokens, hostOf(a), c.name); len(c.name) == 3 && c.name != "400" && c.name != "404" &&
					c.error == imagepin.PullAccessDenied && !strings.Contains(err.Error(), text) {
					t.Errorf("the error does not contain %q: %v", text, err)
				}

				f, err := r.Session(named(t, ref), credential).Fetcher(quiet(t))
				if err != nil {
					t.Fatal(err)
				}
				_, err = fetch(quiet(t), f, a.image.Layer)
				var network interface{ Timeout() bool } // a net.Error, which package pull classifies as ErrUnavailable
				switch {
				case c.class == errdefs.ErrUnavailable && errors.As(err, &network):
				case errdefs.Resolve(err) != c.class && c.class != nil || c.class == nil && err != nil:
					t.Errorf("fetch: got %v, want %v", err, c.class)
				}
			})
		}
	}
}

// checkError checks the reason and class of err.
func checkError(t *testing.T, err error, name imagepin.Reason, class error) {
	t.Helper()
	var e *imagepin.Error
	switch {
	case name == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case name != "" && (!errors.As(err, &e) || e.Reason != name || e.Class != class):
		t.Errorf("got %v\nwant %s, %v", err, name, class)
	case err != nil && strings.Contains(err.Error(), "hush"):
		t.Errorf("the error contains the secret: %v", err)
	}
}

// TestTokenServicesOfMirrors checks that the answer of a token service counts as the answer of its host.
func TestTokenServicesOfMirrors(t *testing.T) {
	const (
		ok    = imagepin.Reason("")
		down  = imagepin.CannotPullImageManifest
		deny  = imagepin.PullAccessDenied
		absnt = http.StatusNotFound
	)
	for _, c := range []struct {
		token int // status code of the first host's token service, 0 for no answer
		other int // status code of the second host, 0 for the image
		name  imagepin.Reason
		class error
	}{
		{503, 0, ok, nil},
		{0, 0, ok, nil},
		{401, 0, ok, nil},
		{503, absnt, down, errdefs.ErrUnavailable},
		{0, absnt, down, errdefs.ErrUnavailable},
		{503, 500, down, errdefs.ErrUnavailable},
		{503, 401, deny, errdefs.ErrUnauthenticated},
		{0, 403, deny, errdefs.ErrPermissionDenied},
		{401, absnt, deny, errdefs.ErrUnauthenticated},
		{403, 500, deny, errdefs.ErrPermissionDenied},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(c.token, " ", c.other, " ", first), func(t *testing.T) {
				asks, other := newRegistry(t), newRegistry(t)
				s := withTokens(t, asks, statusOnly(max(c.token, 200)))
				if c.token == 0 {
					s.Close()
				}
				if c.other != 0 {
					other.answer = status(c.other)
				}
				list := mirrors(asks, other)
				if !first {
					list = mirrors(other, asks)
				}
				_, err := newResolver(t, list).Resolve(quiet(t), named(t, ref), Credential{})
				checkError(t, err, c.name, c.class)
				if errdefs.IsNotFound(err) {
					t.Errorf("got a NotFound error: %v", err)
				}
			})
		}
	}
}

// TestChallengeIsNoRefusal checks that a challenge of a host is not a denied access. The result of the next request
// counts.
func TestChallengeIsNoRefusal(t *testing.T) {
	hang := func(_ http.ResponseWriter, req *http.Request) bool { <-req.Context().Done(); return true }
	abort := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	refuse := func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	for name, c := range map[string]struct {
		then  func(http.ResponseWriter, *http.Request) bool
		name  imagepin.Reason
		class error
	}{
		"hangs":  {hang, imagepin.ManifestPullTimeout, nil},
		"cuts":   {abort, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
		"503":    {status(503), imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
		"403":    {status(403), imagepin.PullAccessDenied, errdefs.ErrPermissionDenied},
		"401":    {refuse, imagepin.PullAccessDenied, errdefs.ErrUnauthenticated},
		"tokens": {nil, imagepin.ManifestPullTimeout, nil},
	} {
		for _, scheme := range []string{"Basic", "Bearer"} {
			if c.then == nil && scheme == "Basic" {
				continue
			}
			t.Run(name+" "+scheme, func(t *testing.T) {
				a := newRegistry(t)
				service := token
				if c.then == nil { // the token service hangs
					service = func(_ http.ResponseWriter, req *http.Request) {
						_ = req.ParseForm() // the server notices the end of a request only after reading its body
						<-req.Context().Done()
					}
				}
				withTokens(t, a, service)
				challenge := a.answer
				if scheme == "Basic" {
					challenge = status(http.StatusUnauthorized)
				}
				a.answer = func(w http.ResponseWriter, req *http.Request) bool {
					if req.Header.Get("Authorization") == "" {
						return challenge(w, req)
					}
					return c.then(w, req)
				}
				r := newResolver(t, server(a))
				if c.name == imagepin.ManifestPullTimeout {
					r.config.Timeout = 200 * time.Millisecond
				}
				_, err := r.Resolve(quiet(t), named(t, ref), Credential{Username: "u", Password: "hush"})
				var e *imagepin.Error
				if !errors.As(err, &e) || e.Reason != c.name || c.class != nil && e.Class != c.class {
					t.Errorf("got %v, want %s, %v", err, c.name, c.class)
				}
			})
		}
	}
}
