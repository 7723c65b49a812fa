package security

import (
	"fmt"
	"net/http"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestTokenServiceFaults lets the token service of a registry fail in every way. An unavailable token service is the
// same as an unavailable registry: a proof is enough for an image on the node. A denial is the same as one of the
// registry.
func TestTokenServiceFaults(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg, elsewhere := testkit.Registry(t), testkit.Registry(t)
	elsewhere.Down()
	own := testkit.OnlyAlice(true)
	own.Users["bob"] = registry.User{Password: "bob's", Repositories: []string{"**"}}
	unreachable := *own
	unreachable.Realm = elsewhere.URL() + "/token"
	reg.SetAuth(own)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	bob := &cri.AuthConfig{Username: "bob", Password: "bob's"}
	ids := map[string]string{}
	for _, repo := range []string{"default/app", "always/app", "default/new"} {
		testkit.Push(t, reg, repo+":v1", testkit.App(t, images.Options{Version: repo}))
		if repo == "default/new" {
			continue
		}
		id, err := n.PullWith(ctx, reg.Ref(repo+":v1"), node.PullOptions{Auth: testkit.AsAlice()})
		if err != nil {
			t.Fatal(err)
		}
		ids[repo] = id
	}
	before := testkit.State(t, n)
	for _, test := range []struct {
		name  string
		auth  *registry.Auth
		fault registry.Fault
		want  testkit.Failure
	}{
		{"is unreachable", &unreachable, registry.Fault{}, testkit.ManifestUnavailable},
		{"cuts the connection", own, registry.Fault{Abort: true}, testkit.ManifestUnavailable},
		{"500", own, registry.Fault{Status: http.StatusInternalServerError}, testkit.ManifestUnavailable},
		{"503", own, registry.Fault{Status: http.StatusServiceUnavailable}, testkit.ManifestUnavailable},
		{"429", own, registry.Fault{Status: http.StatusTooManyRequests}, testkit.ManifestUnavailable},
		{"401", own, registry.Fault{Status: http.StatusUnauthorized}, testkit.Unauthenticated},
		{"403", own, registry.Fault{Status: http.StatusForbidden}, testkit.Forbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			reg.SetAuth(test.auth)
			if test.fault.Status != 0 || test.fault.Abort {
				reg.SetFault(registry.FaultIf(test.fault, registry.Is("", registry.Token)))
			}
			defer reg.SetFault(nil)
			for _, pull := range []struct {
				repo    string
				auth    *cri.AuthConfig
				offline bool // the pull succeeds without the registry
			}{
				{"default/app", testkit.AsAlice(), true}, {"default/app", bob, false}, {"default/app", nil, false}, {"always/app", testkit.AsAlice(), false}, {"default/new", testkit.AsAlice(), false},
			} {
				ref := reg.Ref(pull.repo + ":v1")
				id, err := n.PullWith(ctx, ref, node.PullOptions{Auth: pull.auth})
				if pull.offline && test.want == testkit.ManifestUnavailable {
					if err != nil || id != ids[pull.repo] {
						t.Errorf("pulling %s: got %q, %v, want %s, which is on the node", ref, id, err, ids[pull.repo])
					}
					continue
				}
				test.want.Check(t, err, ref, testkit.TargetOf(""))
			}
			if d := node.Diff(before, testkit.State(t, n)); d != "" {
				t.Errorf("the pulls changed the node's state:\n%s", d)
			}
		})
	}
}

// TestPullOnlyMirror configures a mirror without authentication, and with the capability pull only, for a private
// registry. Content is fetched from the mirror, but the mirror does not decide which credential may use a tag on the
// node.
func TestPullOnlyMirror(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	upstream, mirror := testkit.Registry(t), testkit.Registry(t)
	upstream.SetAuth(testkit.OnlyAlice(false))
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	if err := n.WriteHosts(upstream.Host(), fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\"]\n", upstream.URL(), mirror.URL())); err != nil {
		t.Fatal(err)
	}
	thief := &cri.AuthConfig{Username: "alice", Password: "guessed"}
	for _, behavior := range []string{"once", "prefer-cached", "default", "always"} {
		t.Run(behavior, func(t *testing.T) {
			repo := behavior + "/app"
			img := testkit.App(t, images.Options{Version: behavior})
			digest := testkit.Push(t, upstream, repo+":v1", img)
			testkit.Push(t, mirror, repo+":v1", img)
			tag, byDigest := upstream.Ref(repo+":v1"), upstream.Ref(repo+"@"+digest.String())
			id, err := n.PullWith(ctx, tag, node.PullOptions{Auth: testkit.AsAlice()})
			if err != nil {
				t.Fatal(err)
			}
			if upstream.Count(registry.Is("GET", "")) != 0 || mirror.Count(registry.Is("GET", registry.Blob)) == 0 {
				t.Errorf("the content was not fetched from the mirror:\n%s\n%s", upstream.Dump(), mirror.Dump())
			}
			wantFailure := func(want testkit.Failure) {
				t.Helper()
				for _, auth := range []*cri.AuthConfig{nil, thief} {
					mirror.Reset()
					_, err := n.PullWith(ctx, tag, node.PullOptions{Auth: auth})
					want.Check(t, err, tag, testkit.TargetOf(""))
					if mirror.Count() != 0 {
						t.Errorf("got requests to the mirror:\n%s", mirror.Dump())
					}
				}
			}
			wantFailure(testkit.Unauthenticated)
			// By digest, the mirror serves the image without a credential. This gives no proof.
			for range 2 {
				mirror.Reset()
				if got, err := n.PullWith(ctx, byDigest, node.PullOptions{}); err != nil || got != id {
					t.Errorf("by digest: got %q, %v, want %s", got, err, id)
				}
				if mirror.Count(registry.Is("HEAD", registry.Manifest)) != 1 || mirror.Count() != 1 {
					t.Errorf("by digest: got other requests than one HEAD:\n%s", mirror.Dump())
				}
			}
			wantFailure(testkit.Unauthenticated)
			upstream.Down()
			wantFailure(testkit.ManifestUnavailable)
			_, err = n.PullWith(ctx, tag, node.PullOptions{Auth: testkit.AsAlice()})
			if behavior == "always" {
				testkit.ManifestUnavailable.Check(t, err, tag, testkit.TargetOf(""))
			} else if err != nil {
				t.Errorf("pulling again with alice's credential: %v", err)
			}
			if err := upstream.Up(); err != nil {
				t.Fatal(err)
			}
			upstream.Reset()
			mirror.Reset()
		})
	}
}
