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
)

// unlimited are the sizes of messages in both directions: the peer has limits of
// its own, and containerd's are configured there ([grpc]
// max_send_message_size).
var unlimited = grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32))

// pagedImages is containerd's image store over its socket. A list that is larger
// than one message may be is read in pieces, by the ends of the names: a name
// does not change, so no record that is there all the time is missed, whatever
// happens between two pieces.
type pagedImages struct{ images.Store }

// List implements images.Store.
func (p pagedImages) List(ctx context.Context, filters ...string) ([]images.Image, error) {
	all, err := p.Store.List(ctx, filters...)
	if !tooLarge(err) {
		return all, err
	}
	return p.ending(ctx, filters, "", lastBytes)
}

// lastBytes are what names are told apart by. What is none of them is one more
// class. Most names end in a digest, whose digits are spread over both halves and
// their halves: a list of twice the size that is allowed takes three calls.
const lastBytes = "048cghijklmnopq" + "26aerstuvwxyz._" + "159dABCDEFGHIJKLM" + "37bfNOPQRSTUVWXYZ-:/@" + anyOther

// anyOther stands for the bytes that are not in lastBytes.
const anyOther = "\x00"

// ending lists the images whose names end in one of classes and then suffix.
func (p pagedImages) ending(ctx context.Context, filters []string, suffix, classes string) ([]images.Image, error) {
	found, err := p.Store.List(ctx, allOf(filters, namePattern(suffix, classes))...)
	if !tooLarge(err) {
		return found, err
	}
	if len(classes) > 1 {
		half := len(classes) / 2
		return p.both(
			func() ([]images.Image, error) { return p.ending(ctx, filters, suffix, classes[:half]) },
			func() ([]images.Image, error) { return p.ending(ctx, filters, suffix, classes[half:]) },
		)
	}
	if classes == anyOther {
		return nil, fmt.Errorf("list images in pieces: %w", err)
	}
	suffix = classes + suffix
	return p.both(
		func() ([]images.Image, error) {
			return p.Store.List(ctx, allOf(filters, "name=="+strconv.Quote(suffix))...)
		},
		func() ([]images.Image, error) { return p.ending(ctx, filters, suffix, lastBytes) },
	)
}

func (p pagedImages) both(first, second func() ([]images.Image, error)) ([]images.Image, error) {
	a, err := first()
	if err != nil {
		return nil, err
	}
	b, err := second()
	return append(a, b...), err
}

// namePattern is a filter for names that end in one of classes and then suffix.
func namePattern(suffix, classes string) string {
	class := "[" + escaped(classes) + "]"
	if rest, ok := strings.CutSuffix(classes, anyOther); ok {
		// All bytes but those that are in lastBytes and not in classes.
		excluded := strings.Map(func(c rune) rune {
			if strings.ContainsRune(rest+anyOther, c) {
				return -1
			}
			return c
		}, lastBytes)
		if class = "(?s:.)"; excluded != "" {
			class = "[^" + escaped(excluded) + "]"
		}
	}
	return "name~=" + strconv.Quote(class+regexp.QuoteMeta(suffix)+"$")
}

// escaped is text within a class of a regular expression.
func escaped(class string) string { return strings.ReplaceAll(regexp.QuoteMeta(class), "-", `\-`) }

// allOf narrows filters, of which any may match, by one more condition.
func allOf(filters []string, condition string) []string {
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

// tooLarge reports whether a message was larger than sender or receiver allow:
// that is how gRPC says it, on either side.
func tooLarge(err error) bool {
	return errdefs.IsResourceExhausted(err) &&
		strings.Contains(err.Error(), "larger than max")
}
