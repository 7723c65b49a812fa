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

// TestTokenServiceFaults has the service that gives tokens for a registry fail in every way. One that cannot be asked is a registry that
// cannot be asked: what is here is used by whom it was given to. One that refuses is a registry that refuses.
func TestTokenServiceFaults(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg, elsewhere := testkit.Registry(t), testkit.Registry(t)
	elsewhere.Down()
	own := testkit.OnlyAlice(true)
	own.Users["bob"] = registry.User{Password: "bob's", Repositories: []string{"**"}}
	away := *own
	away.Realm = elsewhere.URL() + "/token"
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
		{"is not there", &away, registry.Fault{}, testkit.ManifestUnavailable},
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
				repo string
				auth *cri.AuthConfig
				here bool // and proved
			}{
				{"default/app", testkit.AsAlice(), true}, {"default/app", bob, false}, {"default/app", nil, false}, {"always/app", testkit.AsAlice(), false}, {"default/new", testkit.AsAlice(), false},
			} {
				ref := reg.Ref(pull.repo + ":v1")
				id, err := n.PullWith(ctx, ref, node.PullOptions{Auth: pull.auth})
				if pull.here && test.want == testkit.ManifestUnavailable {
					if err != nil || id != ids[pull.repo] {
						t.Errorf("%s: %q and %v, not what is here", ref, id, err)
					}
					continue
				}
				test.want.Check(t, err, ref, testkit.TargetOf(""))
			}
			if d := node.Diff(before, testkit.State(t, n)); d != "" {
				t.Errorf("the pulls have changed:\n%s", d)
			}
		})
	}
}

// TestPullOnlyMirror has a mirror without authentication that may only pull beside a private registry. What such a mirror has is fetched
// from it; what a credential may have of a tag that is here, it does not decide.
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
				t.Errorf("the content does not come from the mirror:\n%s\n%s", upstream.Dump(), mirror.Dump())
			}
			refused := func(want testkit.Failure) {
				t.Helper()
				for _, auth := range []*cri.AuthConfig{nil, thief} {
					mirror.Reset()
					_, err := n.PullWith(ctx, tag, node.PullOptions{Auth: auth})
					want.Check(t, err, tag, testkit.TargetOf(""))
					if mirror.Count() != 0 {
						t.Errorf("the mirror was asked:\n%s", mirror.Dump())
					}
				}
			}
			refused(testkit.Unauthenticated)
			// By digest the mirror is as good as any, and gives it to everybody. That proves nothing.
			for range 2 {
				mirror.Reset()
				if got, err := n.PullWith(ctx, byDigest, node.PullOptions{}); err != nil || got != id {
					t.Errorf("by digest: %q, %v", got, err)
				}
				if mirror.Count(registry.Is("HEAD", registry.Manifest)) != 1 || mirror.Count() != 1 {
					t.Errorf("by digest, other requests than one HEAD:\n%s", mirror.Dump())
				}
			}
			refused(testkit.Unauthenticated)
			upstream.Down()
			refused(testkit.ManifestUnavailable)
			_, err = n.PullWith(ctx, tag, node.PullOptions{Auth: testkit.AsAlice()})
			if behavior == "always" {
				testkit.ManifestUnavailable.Check(t, err, tag, testkit.TargetOf(""))
			} else if err != nil {
				t.Errorf("what alice has pulled: %v", err)
			}
			if err := upstream.Up(); err != nil {
				t.Fatal(err)
			}
			upstream.Reset()
			mirror.Reset()
		})
	}
}
