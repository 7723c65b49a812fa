package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
)

// codecs has the types of all requests and responses.
var codecs = newCodecs()

func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, &podSpec{})
	scheme.AddKnownTypeWithName(authentication.WithKind("SelfSubjectReview"), &selfSubjectReview{})
	return serializer.NewCodecFactory(scheme)
}

// resource is a resource of the API.
type resource struct {
	path string // of its group and version
	name string
	kind string
}

// objectKey identifies an object of a resource.
type objectKey struct{ namespace, name string }

func (r resource) describe(key objectKey) string {
	return fmt.Sprintf("%s %s/%s", r.kind, key.namespace, key.name)
}

// get returns a request for an object. If cached is true, the API server may answer from its cache, which can be older
// than etcd.
func (s *session) get(r resource, key objectKey, cached bool) *rest.Request {
	req := s.rest.Get().AbsPath(r.path).Namespace(key.namespace).Resource(r.name).Name(key.name)
	if cached {
		req.Param("resourceVersion", "0")
	}
	return req
}

// object is an object with its metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// read sends a request as do does. The response has to be the object that the request is for.
func (s *session) read(ctx context.Context, req *rest.Request, key objectKey, into object) error {
	if err := s.do(ctx, req, into); err != nil {
		return err
	}
	return key.check(into)
}

// check rejects a response with another object.
func (k objectKey) check(got object) error {
	if got.GetNamespace() != k.namespace || got.GetName() != k.name {
		return errors.New("it answered with another object")
	}
	return nil
}

// do sends a request and decodes the response. If the API server asks the client to wait, it waits and sends the request
// again, unless this takes longer than the context allows.
//
// It replaces the retries of rest, which have no jitter, wait in vain until the context ends, and give up after ten.
func (s *session) do(ctx context.Context, req *rest.Request, into runtime.Object) error {
	for {
		err := s.send(ctx, req, into)
		if !s.wait(ctx, err) {
			return err
		}
	}
}

// send sends a request once and decodes the response.
func (s *session) send(ctx context.Context, req *rest.Request, into runtime.Object) error {
	ctx = logr.NewContext(ctx, logr.Discard()) // rest logs errors that it returns
	return req.MaxRetries(0).Do(ctx).Into(into)
}

// wait waits as long as the API server asks the client to wait before it sends a request again. It returns false at once
// if err asks for no wait, or for a longer one than the context allows.
func (s *session) wait(ctx context.Context, err error) bool {
	d, ok := retryAfter(err)
	return ok && s.sleep(ctx, d) == nil
}

// defaultRetryAfter is how long a client waits that gets 429 without a time.
const defaultRetryAfter = time.Second

// retryAfter returns how long the API server asks the client to wait. It returns false if it does not.
func retryAfter(err error) (time.Duration, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0, false
	}
	var seconds int32
	if d := status.Status().Details; d != nil {
		seconds = d.RetryAfterSeconds
	}
	switch code := status.Status().Code; {
	case seconds > 0 && (code == http.StatusTooManyRequests || code >= 500):
		return time.Duration(seconds) * time.Second, true
	case code == http.StatusTooManyRequests:
		return defaultRetryAfter, true
	}
	return 0, false
}

// errNoTime is the error of a wait that would take longer than the context allows.
var errNoTime = errors.New("no time to wait")

// sleep waits for d, and for up to half of d more, so that clients that wait for the same server do not return at once.
// It returns errNoTime at once if the context ends before d.
func sleep(ctx context.Context, d time.Duration) error {
	spread := d / 2
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if left <= d {
			return errNoTime
		}
		// Half of the time that is left is for the request.
		spread = min(spread, (left-d)/2)
	}
	return pause.Wait(ctx, d+rand.N(spread+1))
}

// maxResponse is the maximum size of a response, in bytes. etcd stores objects of up to 1.5 MiB, in a format that is
// shorter than JSON.
const maxResponse = 4 << 20

// errTooLarge is the error of a response that is longer than maxResponse.
var errTooLarge = fmt.Errorf("the response has more than %d bytes", maxResponse)

// limited is a transport that limits the size of responses.
type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &limitedBody{ReadCloser: resp.Body, left: maxResponse}
	}
	return resp, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper.
func (l limited) WrappedRoundTripper() http.RoundTripper { return l.RoundTripper }

type limitedBody struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	// One byte more shows whether the response is longer than the limit.
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if n > b.left {
		n, err = b.left, errTooLarge
	}
	b.left -= n
	return n, err
}

// detached is a transport whose requests end with their context, also while a credential plugin runs, which cannot be
// canceled.
type detached struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. After the end of the context, the request continues in the background until the
// plugin exits. It is then canceled.
func (d detached) RoundTrip(req *http.Request) (*http.Response, error) {
	type result struct {
		resp *http.Response
		err  error
	}
	done := make(chan result)
	go func() {
		resp, err := d.RoundTripper.RoundTrip(req)
		select {
		case done <- result{resp, err}:
		case <-req.Context().Done():
			if err == nil {
				resp.Body.Close()
			}
		}
	}()
	select {
	case r := <-done:
		return r.resp, r.err
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}
