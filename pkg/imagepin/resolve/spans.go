package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// span is a part of a blob that is fetched in chunks: the bytes up to end. It is a value of the context of the requests.
type span struct{ end, chunk int64 }

type spanKey struct{}

func withSpan(ctx context.Context, s span) context.Context {
	return context.WithValue(ctx, spanKey{}, s)
}

// answer is what the responses to the requests for a blob say about ranges. It is a value of their context.
type answer struct{ ranges bool }

type answerKey struct{}

func withAnswer(ctx context.Context, a *answer) context.Context {
	return context.WithValue(ctx, answerKey{}, a)
}

// errNotRange is the error of a request in a span if its response is not exactly the chunk.
var errNotRange = errors.New("the response is not the requested range")

// spans returns a transport that notes in an [answer] whether the host serves ranges, and that bounds the requests in a
// [span]. containerd requests each chunk with an open range and closes the connection at the end of the chunk, which
// discards what the host has sent by then. A bounded range leaves the connection to the next chunk. containerd takes the
// number of chunks from the length of the first response, which is therefore the length up to the end of the span.
//
// containerd does not check whether a response is the range that it requested. A response that is not fails the
// request, except a redirect and a challenge.
func spans(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if s, ok := req.Context().Value(spanKey{}).(span); ok {
			return s.roundTrip(base, req)
		}
		resp, err := base.RoundTrip(req)
		if a, ok := req.Context().Value(answerKey{}).(*answer); ok && err == nil {
			a.ranges = servesRanges(resp)
		}
		return resp, err
	})
}

func servesRanges(resp *http.Response) bool {
	serves := resp.StatusCode == http.StatusPartialContent ||
		resp.StatusCode == http.StatusOK && strings.EqualFold(resp.Header.Get("Accept-Ranges"), "bytes")
	return serves && !encoded(resp)
}

// encoded reports whether the offsets in the response are not those in the blob.
func encoded(resp *http.Response) bool {
	e := resp.Header.Get("Content-Encoding")
	return e != "" && e != "identity"
}

func (s span) roundTrip(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	first, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(req.Header.Get("Range"), "bytes="), "-"), 10, 64)
	if err != nil || first >= s.end {
		return nil, fmt.Errorf("range %q of a part that ends at %d: %w", req.Header.Get("Range"), s.end, errNotRange)
	}
	last := min(first+s.chunk, s.end) - 1
	bounded := req.Clone(req.Context())
	bounded.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, last))
	resp, err := base.RoundTrip(bounded)
	if err != nil {
		return nil, err
	}
	switch {
	case isRange(resp, first, last):
		resp.ContentLength = s.end - first
		return resp, nil
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode >= 300 && resp.StatusCode < 400:
		return resp, nil
	}
	_ = resp.Body.Close()
	return nil, fmt.Errorf("%w: status %s, content range %q", errNotRange, resp.Status, resp.Header.Get("Content-Range"))
}

// isRange reports whether resp is the bytes from first to last.
func isRange(resp *http.Response, first, last int64) bool {
	return resp.StatusCode == http.StatusPartialContent && resp.ContentLength == last-first+1 && !encoded(resp) &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", first, last))
}
