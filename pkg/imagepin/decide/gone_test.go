package decide

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// TestInClusterHint returns a command that changes the revision of an owner, also if the owner has another revision now.
func TestInClusterHint(t *testing.T) {
	for want, owner := range map[string]policy.Owner{
		"Run: kubectl imagepin refresh --namespace shop replicaset/web-1":                                {Kind: "ReplicaSet", Name: "web-1"},
		"Run: kubectl imagepin refresh --namespace shop pod/NAME, with a pod of revision web-5f4d9b8c77": {Kind: "StatefulSet", Name: "web", Revision: "web-5f4d9b8c77"},
	} {
		wantEqual(t, owner.Kind, inClusterHint("refresh", "shop", owner, ""), want)
	}
}

// TestPinMayBeGone decides for a pinned tag whose digest is not on the node, behind a mirror that answers 404 and a registry
// that cannot be reached. The error names both hosts, the pin and its age, and the commands.
func TestPinMayBeGone(t *testing.T) {
	for name, test := range map[string]struct {
		pin  func(t *testing.T, e *env)
		want []string
	}{
		"node": {
			func(t *testing.T, e *env) { e.make(t, policy.NodeScope, "old", pin.ByUse, false) },
			[]string{"pinned in scope node since ", " ago) to ", "imagepin refresh REF --scope node", "imagepin pin rm REF --scope node"},
		},
		"lock": {
			func(_ *testing.T, e *env) { e.lock("old") },
			[]string{"locked since ", " ago) to ", "imagepin lock status", "imagepin rollback"},
		},
		"none": {func(*testing.T, *env) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
			mirror := e.addMirror(t, `"pull", "resolve"`)
			mirror.status.Store(404)
			test.pin(t, e)
			e.registry.Close()
			_, err := e.Decide(e.ctx, e.asked(t, policy.Pod{}))
			checkMayBeGone(t, e, err, []string{mirror.URL, e.registry.URL}, test.want)
			if pinned := strings.Contains(err.Error(), "pinned"); test.want == nil && pinned {
				t.Errorf("got %v for a tag without a pin", err)
			}
		})
	}
}

// TestClaimedMayBeGone is TestPinMayBeGone for a digest that the cluster has.
func TestClaimedMayBeGone(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	mirror := e.addMirror(t, `"pull", "resolve"`)
	mirror.status.Store(404)
	e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
	e.registry.Close()
	q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a")})
	noError(t, err)
	_, err = e.Decide(e.ctx, q)
	checkMayBeGone(t, e, err, []string{mirror.URL, e.registry.URL}, []string{"pinned in the cluster by ", " ago) to ", "Run: kubectl imagepin refresh --namespace "})
}

func checkMayBeGone(t *testing.T, e *env, err error, hosts, want []string) {
	t.Helper()
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.CannotPullImageManifest || known.Class != errdefs.ErrUnavailable || !resolve.Unavailable(err) {
		t.Fatalf("got %v, want CannotPullImageManifest and ErrUnavailable", err)
	}
	for _, host := range hosts {
		u, err := url.Parse(host)
		noError(t, err)
		want = append(want, u.Host)
	}
	for _, part := range append(want, " answered 404 Not Found; ", " did not answer: dial tcp ") {
		if part = strings.ReplaceAll(part, "REF", e.ref.String()); !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
}

// TestWithPin leaves errors of other types unchanged.
func TestWithPin(t *testing.T) {
	other := errors.New("other")
	wantEqual(t, "error", WithPin(pin.Pin{MadeAt: time.Now()}, other), other)
}
