//go:build unix

package serve

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/imagepin/imagepin/internal/upstream"
)

// unlimited disables the limits of message sizes in both directions. The peer has its own limits; containerd's are
// configured in containerd ([grpc] max_send_message_size).
var unlimited = grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32))

// pagedImages is containerd's image store over its socket. If a list is larger than the maximum message size, it is
// read in parts, by the last bytes of the names. Names do not change, so a record that exists all the time is never
// missed, even if other records change between two parts.
type pagedImages struct{ images.Store }

// List implements images.Store.
func (p pagedImages) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	all, err := p.Store.List(ctx, filters...)
	if !tooLarge(err) {
		return all, err
	}
	return p.listEnding(ctx, filters, "", lastBytes)
}

// lastBytes are the bytes by which names are divided. All other bytes are one more class. Most names end in a digest,
// and the order distributes hexadecimal digits evenly over both halves, and over their halves. A list of twice the
// maximum size takes three calls.
const lastBytes = "048cghijklmnopq" + "26aerstuvwxyz._" + "159dABCDEFGHIJKLM" + "37bfNOPQRSTUVWXYZ-:/@" + anyOther

// anyOther represents the bytes that are not in lastBytes.
const anyOther = "\x00"

// listEnding lists the images whose names end in one of classes followed by suffix.
func (p pagedImages) listEnding(ctx context.Context, filters []string, suffix, classes string) ([]images.Image, error) {
	found, err := p.Store.List(ctx, withCondition(filters, namePattern(suffix, classes))...)
	if !tooLarge(err) {
		return found, err
	}
	if len(classes) > 1 {
		half := len(classes) / 2
		return p.concat(
			func() ([]images.Image, error) { return p.listEnding(ctx, filters, suffix, classes[:half]) },
			func() ([]images.Image, error) { return p.listEnding(ctx, filters, suffix, classes[half:]) },
		)
	}
	if classes == anyOther {
		return nil, fmt.Errorf("list images in parts: %w", err)
	}
	suffix = classes + suffix
	return p.concat(
		func() ([]images.Image, error) {
			return p.Store.List(ctx, withCondition(filters, "name=="+strconv.Quote(suffix))...)
		},
		func() ([]images.Image, error) { return p.listEnding(ctx, filters, suffix, lastBytes) },
	)
}

func (p pagedImages) concat(first, second func() ([]images.Image, error)) ([]images.Image, error) {
	a, err := first()
	if err != nil {
		return nil, err
	}
	b, err := second()
	return append(a, b...), err
}

// namePattern returns a filter for names that end in one of classes followed by suffix.
func namePattern(suffix, classes string) string {
	class := "[" + escapeClass(classes) + "]"
	if rest, ok := strings.CutSuffix(classes, anyOther); ok {
		// All bytes, except those that are in lastBytes and not in classes.
		excluded := strings.Map(func(c rune) rune {
			if strings.ContainsRune(rest+anyOther, c) {
				return -1
			}
			return c
		}, lastBytes)
		if class = "(?s:.)"; excluded != "" {
			class = "[^" + escapeClass(excluded) + "]"
		}
	}
	return "name~=" + strconv.Quote(class+regexp.QuoteMeta(suffix)+"$")
}

// escapeClass escapes text for a character class of a regular expression.
func escapeClass(class string) string { return strings.ReplaceAll(regexp.QuoteMeta(class), "-", `\-`) }

// withCondition adds a condition to filters. An image matches if any of filters matches and the condition does.
func withCondition(filters []string, condition string) []string {
	if len(filters) == 0 {
		return []string{condition}
	}
	all := make([]string, len(filters))
	for i, f := range filters {
		all[i] = condition
		if f != "" {
			all[i] = f + "," + condition
		}
	}
	return all
}

// tooLarge reports whether a message was larger than the sender or the receiver allows.
func tooLarge(err error) bool {
	return errdefs.IsResourceExhausted(err) && strings.Contains(err.Error(), upstream.MessageTooLarge)
}
