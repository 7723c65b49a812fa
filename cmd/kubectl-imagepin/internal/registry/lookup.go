package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// maxReason is the length of a reason, in characters.
const maxReason = 200

// Result is the digest that an image resolves to, or why it cannot be resolved.
type Result struct {
	Digest string
	// Reason is one line, with neither the image nor the request. It is empty if there is a digest.
	Reason string
}

// Lookup resolves images, all at the same time, and returns the result of each. After a timeout, it returns what it has.
func (r Resolver) Lookup(ctx context.Context, images []string, timeout time.Duration) map[string]Result {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type answer struct {
		image string
		Result
	}
	results := make(map[string]Result)
	// The goroutines can outlive the call, because a credential helper of Docker ignores the context.
	answers := make(chan answer, len(images))
	for _, image := range images {
		if _, started := results[image]; started {
			continue
		}
		results[image] = Result{Reason: fmt.Sprintf("no answer within %s", timeout)}
		go func() {
			digest, err := r.digest(ctx, image)
			answers <- answer{image, Result{digest, reason(err)}}
		}()
	}
	for range len(results) {
		select {
		case a := <-answers:
			if a.Digest != "" || ctx.Err() == nil {
				results[a.image] = a.Result
			}
		case <-ctx.Done():
			return results
		}
	}
	return results
}

// errNoToken replaces the error of the library for an answer of a token service without a token: it has the whole answer, and that can
// have a secret.
var errNoToken = errors.New("the token service of the registry returned no token")

func withoutAnswer(err error) error {
	if strings.Contains(err.Error(), "bearer response") {
		return errNoToken
	}
	return err
}

// reason returns what a registry reports, or why it cannot be reached. It is empty without an error.
func reason(err error) string {
	if err == nil {
		return ""
	}
	err = withoutAnswer(err)
	text := err.Error()
	if reported := (*transport.Error)(nil); errors.As(err, &reported) {
		text = fmt.Sprintf("%d %s", reported.StatusCode, http.StatusText(reported.StatusCode))
		if len(reported.Errors) > 0 {
			first := reported.Errors[0]
			text = fmt.Sprintf("%s: %s", cmp.Or(first.Code, "UNKNOWN"), first.Message)
		}
	} else if unreachable := (*url.Error)(nil); errors.As(err, &unreachable) {
		text = unreachable.Err.Error()
	}
	// A registry must not be able to write lines of its own.
	return fmt.Sprintf("%.*s", maxReason, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
}
