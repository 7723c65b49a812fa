package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// want checks the reason, the class and a part of the text of an error.
func want(t *testing.T, err error, reason imagepin.Reason, class error, text string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason || e.Class != class || !errors.Is(err, class) {
		t.Errorf("got error %v, want %s (%v)", err, reason, class)
		return
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("got error %v, want one with %q", err, text)
	}
}

func wantUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, text)
}
