package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// The calls of a client.
const (
	callOwnerOf = "OwnerOf"
	callFind    = "Find"
	callClaim   = "Claim"
)

// call makes a call of the client for the pod web.
func (c *Client) call(ctx context.Context, name string) error {
	var err error
	switch name {
	case callOwnerOf:
		_, err = c.OwnerOf(ctx, webPod)
	case callFind:
		_, err = c.Find(ctx, webOwner(), tag, true)
	case callClaim:
		_, _, err = c.Claim(ctx, webOwner(), webPod, tag, digestA)
	}
	return err
}

// TestAnswers checks the errors of each answer of the API server, and which later calls they stop.
func TestAnswers(t *testing.T) {
	pins := schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}
	kind := schema.GroupKind{Group: "imagepin.io", Kind: "ImagePin"}
	status := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { refuse(w, err) }
	}
	text := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	terminating := apierrors.NewForbidden(pins, "x", errors.New("unable to create new content in namespace shop because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: namespaceTerminating}}
	denied := apierrors.NewInvalid(kind, "x", nil)
	denied.ErrStatus.Message = "ValidatingAdmissionPolicy 'imagepins' denied request: a node claims for itself only" + strings.Repeat("!", 1<<16)

	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		calls  string // that get the answer
		reason imagepin.Reason
		text   string
		hint   string
		stops  string // the calls that are not made afterwards
	}{
		{
			name: "401", answer: status(apierrors.NewUnauthorized("Unauthorized")), calls: "OwnerOf Find Claim",
			reason: imagepin.ClusterUnavailable, text: "answered 401 Unauthorized", hint: "Check that the credential", stops: "OwnerOf Find Claim",
		},
		{
			name: "403 of a pod", answer: status(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("no relationship found between node 'n1' and this object"))),
			calls: "OwnerOf", reason: imagepin.ClaimRefused, text: "get pod shop/web-7d4b9c-x: the API server 127.0.0.1:%PORT% answered 403 Forbidden: pods \"web\" is forbidden: no relationship found",
		},
		{
			name: "403 of a get", answer: status(apierrors.NewForbidden(pins, "x", errors.New("cannot get resource"))), calls: "Find",
			reason: imagepin.ClusterUnavailable, text: "403 Forbidden", hint: "Apply contrib/kubernetes/cluster", stops: "Find Claim",
		},
		{
			name: "403 of a claim", answer: status(apierrors.NewForbidden(pins, "x", errors.New("exceeded quota"))), calls: "Claim",
			reason: imagepin.ClaimRefused, text: "exceeded quota",
		},
		{name: "namespace is terminating", answer: status(terminating), calls: "Claim", reason: imagepin.ClusterUnavailable, text: "it is being terminated"},
		{
			name: "namespace is gone", answer: status(apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)), calls: "Claim",
			reason: imagepin.ClaimRefused, text: `namespaces "shop" not found`,
		},
		{
			name: "422", answer: status(denied), calls: "Claim", reason: imagepin.ClaimRefused,
			text: "create ImagePin shop/web-7d4b9c.%HASH%: the API server 127.0.0.1:%PORT% answered 422 Unprocessable Entity: ValidatingAdmissionPolicy 'imagepins' denied request: a node claims for itself only",
		},
		{name: "400", answer: status(apierrors.NewBadRequest("strict decoding error")), calls: "Claim", reason: imagepin.ClaimRefused, text: "strict decoding error"},
		{name: "405", answer: status(apierrors.NewMethodNotSupported(pins, "create")), calls: "Claim", reason: imagepin.ClaimRefused, text: "405 Method Not Allowed"},
		{
			name: "the kind is not served", answer: text(404, "404 page not found"), calls: "Find Claim",
			reason: imagepin.ClusterUnavailable, text: "does not serve ImagePins", hint: "Apply contrib/kubernetes/cluster", stops: "Find Claim",
		},
		{name: "no API server", answer: text(404, "404 page not found"), calls: "OwnerOf", reason: imagepin.ClusterUnavailable, text: "answered 404 Not Found", stops: "OwnerOf Find Claim"},
		{name: "408", answer: text(408, "timeout"), calls: "OwnerOf Find Claim", reason: imagepin.ClusterUnavailable, text: "408 Request Timeout", stops: "OwnerOf Find Claim"},
		{name: "500", answer: status(apierrors.NewInternalError(errors.New("etcdserver: leader changed"))), calls: "OwnerOf Find Claim", reason: imagepin.ClusterUnavailable, text: "etcdserver: leader changed", hint: "Check the API server", stops: "OwnerOf Find Claim"},
		{name: "502 of a load balancer", answer: text(502, "<html>Bad Gateway</html>"), calls: "OwnerOf Find Claim", reason: imagepin.ClusterUnavailable, text: "502 Bad Gateway", stops: "OwnerOf Find Claim"},
		{name: "503", answer: text(503, "starting"), calls: "Find", reason: imagepin.ClusterUnavailable, text: "503 Service Unavailable", stops: "OwnerOf Find Claim"},
		{name: "504", answer: text(504, "timeout"), calls: "Claim", reason: imagepin.ClusterUnavailable, text: "504 Gateway Timeout", stops: "OwnerOf Find Claim"},
		{
			name: "429 for an hour", answer: status(apierrors.NewTooManyRequests("too many requests", 3600)), calls: "OwnerOf",
			reason: imagepin.ClusterUnavailable, text: "too many requests (try again in 1h0m0s)", hint: "The API server limits requests", stops: "OwnerOf Find Claim",
		},
		{
			name: "429 for ImagePins", answer: status(apierrors.NewTooManyRequests("too many requests", 3600)), calls: "Find Claim",
			reason: imagepin.ClusterUnavailable, text: "too many requests (try again in 1h0m0s)", hint: "The API server limits requests", stops: "Find Claim",
		},
		{
			name: "200 of a login page", answer: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>Sign in</html>") }, calls: "OwnerOf Find Claim",
			reason: imagepin.ClusterUnavailable, text: "is unavailable", stops: "OwnerOf Find Claim",
		},
		{
			name: "200 with another object", answer: func(w http.ResponseWriter, _ *http.Request) { respond(w, 200, map[string]any{"a": 1}) }, calls: "OwnerOf Find Claim",
			reason: imagepin.ClusterUnavailable, text: "is unavailable", stops: "OwnerOf Find Claim",
		},
		{
			name: "200 with half an object", answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"kind":"ImagePin",`)
			}, calls: "OwnerOf Find Claim", reason: imagepin.ClusterUnavailable, text: "is unavailable", stops: "OwnerOf Find Claim",
		},
		{
			name: "endless", answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				for err := error(nil); err == nil; {
					_, err = io.WriteString(w, strings.Repeat(" ", 1<<16))
				}
			}, calls: "OwnerOf Find Claim", reason: imagepin.ClaimRefused, text: "the response has more than 4194304 bytes",
		},
	} {
		for _, call := range strings.Fields(c.calls) {
			t.Run(c.name+"/"+call, func(t *testing.T) {
				a := startServer(t)
				client, _ := a.client()
				if call == callClaim { // the name of the node is known
					if _, _, err := client.Claim(t.Context(), webOwner(), webPod, "registry.example.com/shop/other:v1", digestA); err != nil {
						t.Fatal(err)
					}
				}
				a.answer(c.answer)
				err := client.call(t.Context(), call)
				class := error(errdefs.ErrPermissionDenied)
				if c.reason == imagepin.ClusterUnavailable {
					class = errdefs.ErrUnavailable
				}
				_, port, _ := net.SplitHostPort(a.Listener.Addr().String())
				_, hash, _ := strings.Cut(webPin(tag, digestA).Name, ".")
				want(t, err, c.reason, class, strings.NewReplacer("%PORT%", port, "%HASH%", hash).Replace(c.text))
				first, hint, _ := strings.Cut(err.Error(), "\n")
				if !strings.HasPrefix(hint, c.hint) || c.hint == "" && hint != "" && c.reason == imagepin.ClaimRefused {
					t.Errorf("got hint %q, want %q", hint, c.hint)
				}
				if call != callOwnerOf && !strings.HasPrefix(first, string(c.reason)+": "+tag+": ") {
					t.Errorf("got %s, want one with the image", first)
				}
				if len(err.Error()) > imagepin.MaxErrorText {
					t.Errorf("the error has %d bytes", len(err.Error()))
				}

				// The server works again, so the calls that are made succeed.
				a.on(nil)
				a.addPod(webPod.Name, webPod.UID, nil)
				a.got()
				for _, next := range []string{callOwnerOf, callFind, callClaim} {
					err := client.call(t.Context(), next)
					stopped := strings.Contains(c.stops, next)
					if stopped {
						want(t, err, c.reason, class, "no request was sent so soon after a failure: ")
					} else if err != nil {
						t.Errorf("%s: %v", next, err)
					}
					if made := len(a.got()) > 0; made == stopped {
						t.Errorf("%s sent a request: %v", next, made)
					}
				}
			})
		}
	}
}

// TestUnreachable checks the errors without an answer.
func TestUnreachable(t *testing.T) {
	t.Run("connection refused", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		a.Close()
		for _, call := range []string{callFind, callOwnerOf, callClaim} {
			wantUnavailable(t, c.call(t.Context(), call), "connect: connection refused")
		}
	})
	t.Run("connections are closed", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		a.answer(func(_ http.ResponseWriter, r *http.Request) { drop(r) })
		wantUnavailable(t, c.call(t.Context(), callFind), "is unavailable")
		if got := a.got(); len(got) != 2 || got[0].remote == got[1].remote {
			t.Errorf("got requests %v, want two on different connections", got)
		}
	})
	t.Run("certificate of an unknown authority", func(t *testing.T) {
		a := startServer(t)
		path := t.TempDir() + "/kubeconfig"
		writeKubeconfig(t, path, a.URL, newAuthority(t).pem(), tokenUser)
		c, _ := newClient(t, path)
		wantUnavailable(t, c.call(t.Context(), callFind), "certificate signed by unknown authority")
	})
	t.Run("no answer in time", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		c.timeout = 50 * time.Millisecond
		a.answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		wantUnavailable(t, c.call(t.Context(), callFind), "did not answer in time")
		wantUnavailable(t, c.call(t.Context(), callFind), "no request was sent")
	})
	t.Run("no answer before the deadline of the caller", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		a.answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := c.call(ctx, callFind)
		wantUnavailable(t, err, "did not answer in time")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want one that is also DeadlineExceeded", err)
		}
		a.on(nil)
		// A caller with more time is not affected.
		if err := c.call(t.Context(), callFind); err != nil {
			t.Error(err)
		}
	})
	t.Run("the caller cancels", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		ctx, cancel := context.WithCancel(t.Context())
		a.answer(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
		if err := c.call(ctx, callFind); !errors.Is(err, context.Canceled) || errdefs.IsUnavailable(err) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		a.on(nil)
		if err := c.call(t.Context(), callFind); err != nil {
			t.Error(err)
		}
	})
	t.Run("redirect", func(t *testing.T) {
		other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("a request was redirected, with credential %q", r.Header.Get("Authorization"))
		}))
		defer other.Close()
		a := startServer(t)
		c, _ := a.client()
		a.answer(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
		wantUnavailable(t, c.call(t.Context(), callFind), "answered 302 Found")
	})
	t.Run("after Close", func(t *testing.T) {
		a := startServer(t)
		c, _ := a.client()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		wantUnavailable(t, c.call(t.Context(), callFind), "the client is closed")
	})
}

// TestHurried checks which deadlines are too early for a call that ends with them to show anything. A caller that has the
// timeout of the client as its own is not too early.
func TestHurried(t *testing.T) {
	c, _ := newClient(t, "/kubeconfig")
	for left, want := range map[time.Duration]bool{0: false, c.timeout: false, c.timeout * 3 / 4: false, 10 * c.timeout: false, c.timeout / 4: true, time.Millisecond: true} {
		ctx, cancel := t.Context(), func() {}
		if left > 0 {
			ctx, cancel = context.WithTimeout(ctx, left)
		}
		if got := c.hurried(ctx); got != want {
			t.Errorf("%s of %s: got %v, want %v", left, c.timeout, got, want)
		}
		cancel()
	}
}

// TestErrorsHaveNoSecrets checks that no error has a part of the credential, also if the URL of the server has one.
func TestErrorsHaveNoSecrets(t *testing.T) {
	const secret = "s3cret"
	a := startServer(t)
	withPassword := strings.Replace(a.URL, "https://", "https://kubelet:"+secret+"@", 1)
	gone := httptest.NewServer(nil)
	gone.Close()
	path := t.TempDir() + "/kubeconfig"
	for name, prepare := range map[string]func(){
		"refused": func() {
			writeKubeconfig(t, path, strings.Replace(gone.URL, "http://", "https://u:"+secret+"@", 1), a.ca(), tokenUser)
		},
		"unauthorized": func() {
			writeKubeconfig(t, path, withPassword, a.ca(), "{}")
			a.answer(func(w http.ResponseWriter, _ *http.Request) { refuse(w, apierrors.NewUnauthorized("Unauthorized")) })
		},
		"unavailable": func() {
			writeKubeconfig(t, path, withPassword, a.ca(), tokenUser)
			a.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		},
		"unknown authority": func() { writeKubeconfig(t, path, withPassword, newAuthority(t).pem(), tokenUser) },
		"dropped": func() {
			writeKubeconfig(t, path, withPassword, a.ca(), tokenUser)
			a.answer(func(_ http.ResponseWriter, r *http.Request) { drop(r) })
		},
		"broken YAML": func() { replace(t, path, "token: \""+secret+"\n  x: [") },
		"wrong types": func() { replace(t, path, `{"kind":"Config","apiVersion":"v1","users":"`+secret+`"}`) },
		"broken data": func() { writeKubeconfig(t, path, a.URL, a.ca(), `{"client-key-data":"`+secret+`!"}`) },
		"broken key": func() {
			writeKubeconfig(t, path, a.URL, a.ca(), `{"client-key-data":"czNjcmV0","client-certificate-data":"czNjcmV0"}`)
		},
		"two credentials": func() {
			writeKubeconfig(t, path, a.URL, a.ca(), `{"token":"`+secret+`","username":"x","password":"`+secret+`"}`)
		},
		"broken URL": func() { writeKubeconfig(t, path, "https://u:"+secret+"@[::1", a.ca(), tokenUser) },
		"broken URL of a proxy": func() {
			writeKubeconfig(t, path, a.URL+`","proxy-url":"http://u:`+secret+`@[::1`, a.ca(), tokenUser)
		},
		"broken proxy": func() {
			writeKubeconfig(t, path, a.URL+`","proxy-url":"http://u:`+secret+`@127.0.0.1:1`, a.ca(), tokenUser)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a.on(nil)
			prepare()
			c, _ := newClient(t, path)
			for _, call := range []string{callFind, callOwnerOf, callClaim} {
				err := c.call(t.Context(), call)
				if err == nil {
					t.Errorf("%s succeeded", call)
				} else if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "czNjcmV0") {
					t.Errorf("%s: the error has the secret: %v", call, err)
				}
			}
		})
	}
}

// TestPasswordsInURLs checks texts of other packages, for example of an invalid proxy in the environment.
func TestPasswordsInURLs(t *testing.T) {
	s := &session{server: "10.0.0.1:6443"}
	err := s.noAnswer(errors.New(`invalid proxy address "http://u:s3cret@proxy:x": parse "http://u:s3cret@proxy:x": invalid port`), "get pod a/b")
	want := `the API server 10.0.0.1:6443 is unavailable: invalid proxy address "http://proxy:x": parse "http://proxy:x": invalid port`
	if got := err.err.Err.Error(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
