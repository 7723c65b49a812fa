package security

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPresentImageNeedsProof pulls a private digest that is on the node with other credentials than the one it was
// pulled with. Each credential needs the consent of the registry, but only once.
func TestPresentImageNeedsProof(t *testing.T) {
	t.Parallel()
	for _, bearer := range []bool{false, true} {
		t.Run(fmt.Sprintf("bearer=%t", bearer), func(t *testing.T) {
			ctx := testkit.Context(t)
			reg := testkit.Registry(t)
			reg.SetAuth(&registry.Auth{Bearer: bearer, Public: []string{"public/*"}, Users: map[string]registry.User{
				"alice":   {Password: testkit.AlicePassword, Repositories: []string{"private/*"}},
				"bob":     {Password: "bob's", Repositories: []string{"private/*"}},
				"mallory": {Password: "mallory's", Repositories: []string{"evil/*"}},
			}})
			n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
			digest := testkit.Push(t, reg, "private/app:v1", testkit.App(t, images.Options{}))
			testkit.Push(t, reg, "evil/app:v1", testkit.App(t, images.Options{Version: "evil"}))
			tag, byDigest := reg.Ref("private/app:v1"), reg.Ref("private/app@"+digest.String())
			elsewhere := reg.Ref("evil/app@" + digest.String())
			bob := &cri.AuthConfig{Username: "bob", Password: "bob's"}
			mallory := &cri.AuthConfig{Username: "mallory", Password: "mallory's"}
			wrong := &cri.AuthConfig{Username: "alice", Password: "guessed"}

			if _, err := n.PullWith(ctx, tag, node.PullOptions{Auth: testkit.AsAlice()}); err != nil {
				t.Fatal(err)
			}
			before := testkit.State(t, n)
			for _, test := range []struct {
				name string
				ref  string
				auth *cri.AuthConfig
				want testkit.Failure
			}{
				{"no credential", byDigest, nil, testkit.Unauthenticated},
				{"no credential, by tag", tag, nil, testkit.Unauthenticated},
				{"wrong password", byDigest, wrong, testkit.Unauthenticated},
				{"wrong password, by tag", tag, wrong, testkit.Unauthenticated},
				{"another user", byDigest, mallory, testkit.Unauthenticated},
				{"another repository", elsewhere, mallory, testkit.NoSuchImage},
				{"another repository, no credential", elsewhere, nil, testkit.Unauthenticated},
				{"another repository, right credential", elsewhere, testkit.AsAlice(), testkit.Unauthenticated},
			} {
				for _, handler := range []string{"", "native"} {
					reg.Reset()
					_, err := n.PullWith(ctx, test.ref, node.PullOptions{Auth: test.auth, Handler: handler})
					test.want.Check(t, err, test.ref, testkit.TargetOf(handler))
					if reg.Count() == 0 {
						t.Errorf("%s: got no registry request", test.name)
					}
				}
				if d := node.Diff(before, testkit.State(t, n)); d != "" {
					t.Errorf("%s: the denied pull changed the node's state:\n%s", test.name, d)
				}
			}
			if img, err := n.ImageStatus(ctx, elsewhere, ""); err != nil || img != nil {
				t.Errorf("ImageStatus by the name in another repository: got %v, %v, want no image", img, err)
			}

			pulls := func(what string, auth *cri.AuthConfig, heads int) {
				t.Helper()
				reg.Reset()
				if _, err := n.PullWith(ctx, byDigest, node.PullOptions{Auth: auth}); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				accepted := reg.Count(registry.Is("HEAD", registry.Manifest), func(q registry.Request) bool { return q.Status == http.StatusOK })
				if accepted != heads || reg.Count(registry.Is("GET", "")) != reg.Count(registry.Is("GET", registry.Token)) {
					t.Errorf("%s: got other requests than %d accepted HEADs:\n%s", what, heads, reg.Dump())
				}
				if heads == 0 && reg.Count() != 0 {
					t.Errorf("%s: got registry requests:\n%s", what, reg.Dump())
				}
			}
			pulls("the credential that was accepted", testkit.AsAlice(), 0)
			pulls("another valid credential", bob, 1)
			pulls("another valid credential, again", bob, 0)
			if err := n.Kill9(); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(ctx); err != nil {
				t.Fatal(err)
			}
			pulls("alice after a crash", testkit.AsAlice(), 0)
			pulls("bob after a crash", bob, 0)
			_, err := n.PullWith(ctx, byDigest, node.PullOptions{Auth: wrong})
			testkit.Unauthenticated.Check(t, err, byDigest, testkit.TargetOf(""))

			// Losing the key of the proofs costs one more request for each credential.
			if err := n.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(n.NodeKey()); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(ctx); err != nil {
				t.Fatal(err)
			}
			_, err = n.PullWith(ctx, byDigest, node.PullOptions{Auth: wrong})
			testkit.Unauthenticated.Check(t, err, byDigest, testkit.TargetOf(""))
			pulls("alice without the node's key", testkit.AsAlice(), 1)
			pulls("alice with a new node's key", testkit.AsAlice(), 0)
		})
	}
}

// TestPublicImageNeedsNoProof checks that a public image on the node is available with any credential, or none, without
// registry requests.
func TestPublicImageNeedsNoProof(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{})
	digest := testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{}))
	if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
	reg.Reset()
	for _, auth := range []*cri.AuthConfig{nil, testkit.AsAlice(), {IdentityToken: "anything"}} {
		if _, err := n.PullWith(ctx, reg.Ref("app@"+digest.String()), node.PullOptions{Auth: auth}); err != nil {
			t.Error(err)
		}
	}
	if reg.Count() != 0 {
		t.Errorf("got registry requests:\n%s", reg.Dump())
	}
}

// TestRefusalOfAnyHostCounts checks that a pull is denied if one host denies it and the other does not have the image
// or fails. containerd's resolver returns one error for both hosts.
func TestRefusalOfAnyHostCounts(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	upstream, mirror := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{})
	if err := n.WriteHosts(upstream.Host(), node.Mirror(upstream.URL(), mirror.URL())); err != nil {
		t.Fatal(err)
	}
	digest := testkit.Push(t, upstream, "app:v1", testkit.App(t, images.Options{}))
	for _, present := range []bool{false, true} {
		if present {
			if _, err := n.Pull(ctx, upstream.Ref("app:v1"), ""); err != nil {
				t.Fatal(err)
			}
		}
		before := testkit.State(t, n)
		for _, other := range []int{http.StatusNotFound, http.StatusInternalServerError} {
			for refusal, want := range map[int]testkit.Failure{http.StatusUnauthorized: testkit.Unauthenticated, http.StatusForbidden: testkit.Forbidden} {
				for _, order := range []struct{ refuses, fails *registry.Registry }{{upstream, mirror}, {mirror, upstream}} {
					order.refuses.SetFault(registry.FaultIf(registry.Fault{Status: refusal}))
					order.fails.SetFault(registry.FaultIf(registry.Fault{Status: other}))
					for _, ref := range []string{upstream.Ref("app:v1"), upstream.Ref("app@" + digest.String())} {
						_, err := n.PullWith(ctx, ref, node.PullOptions{Auth: testkit.AsAlice()})
						if present && strings.Contains(ref, "@") {
							// The digest was pulled without a credential before, so there is no request.
							if err != nil {
								t.Errorf("pulling %s, which is public and on the node: %v", ref, err)
							}
							continue
						}
						want.Check(t, err, ref, testkit.TargetOf(""))
						if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%s answered %d", order.refuses.Host(), refusal)) {
							t.Errorf("the error does not say that %s answered %d: %v", order.refuses.Host(), refusal, err)
						}
					}
				}
			}
		}
		if d := node.Diff(before, testkit.State(t, n)); d != "" && !present {
			t.Errorf("denied pulls changed the node's state:\n%s", d)
		}
		upstream.SetFault(nil)
		mirror.SetFault(nil)
	}
}

// TestRegistryAuth checks which forms of credentials are sent to a registry and accepted.
func TestRegistryAuth(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	basic, bearer := testkit.Registry(t), testkit.Registry(t)
	basic.SetAuth(testkit.OnlyAlice(false))
	bearer.SetAuth(testkit.OnlyAlice(true))
	n := testkit.Node(t, node.Options{})
	both := base64.StdEncoding.EncodeToString([]byte("alice:" + testkit.AlicePassword))
	seq := 0
	for _, test := range []struct {
		name     string
		reg      *registry.Registry
		auth     *cri.AuthConfig
		accepted bool
		sent     bool
	}{
		{"basic: username and password", basic, testkit.AsAlice(), true, true},
		{"basic: auth", basic, &cri.AuthConfig{Auth: both}, true, true},
		{"basic: wrong", basic, &cri.AuthConfig{Username: "alice", Password: "guessed"}, false, true},
		{"basic: for this server", basic, &cri.AuthConfig{Auth: both, ServerAddress: basic.Host()}, true, true},
		{"basic: for this server's URL", basic, &cri.AuthConfig{Auth: both, ServerAddress: basic.URL() + "/v2/"}, true, true},
		{"basic: for another server", basic, &cri.AuthConfig{Auth: both, ServerAddress: bearer.Host()}, false, false},
		{"bearer: username and password", bearer, testkit.AsAlice(), true, true},
		{"bearer: auth", bearer, &cri.AuthConfig{Auth: both}, true, true},
		{"bearer: identity token", bearer, &cri.AuthConfig{IdentityToken: testkit.AliceToken}, true, true},
		{"bearer: wrong identity token", bearer, &cri.AuthConfig{IdentityToken: "guessed"}, false, false},
		{"bearer: for another server", bearer, &cri.AuthConfig{IdentityToken: testkit.AliceToken, ServerAddress: "example.com"}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			seq++
			repo := fmt.Sprintf("app%d:v1", seq)
			testkit.Push(t, test.reg, repo, testkit.App(t, images.Options{Version: repo}))
			test.reg.Reset()
			_, err := n.PullWith(ctx, test.reg.Ref(repo), node.PullOptions{Auth: test.auth})
			if test.accepted && err != nil {
				t.Errorf("the pull failed: %v\n%s", err, test.reg.Dump())
			}
			if !test.accepted {
				testkit.Unauthenticated.Check(t, err, test.reg.Ref(repo), testkit.TargetOf(""))
			}
			sent := test.reg.Count(func(q registry.Request) bool { return q.User == "alice" }) > 0
			if sent != test.sent {
				t.Errorf("alice's credential was sent: got %t, want %t\n%s", sent, test.sent, test.reg.Dump())
			}
		})
	}
}

// TestNodeCredentials checks that the node's configured credential for a registry is used for that registry only, and
// only if the caller has no credential.
func TestNodeCredentials(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg, other := testkit.Registry(t), testkit.Registry(t)
	for _, r := range []*registry.Registry{reg, other} {
		r.SetAuth(testkit.OnlyAlice(false))
		testkit.Push(t, r, "app:v1", testkit.App(t, images.Options{}))
	}
	n := testkit.Node(t, node.Options{Extra: fmt.Sprintf(
		"[plugins.%q.registry.configs.%q.auth]\nusername = %q\npassword = %q\n",
		"io.containerd.cri.v1.images", reg.Host(), "alice", testkit.AlicePassword)})
	if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
		t.Error(err)
	}
	_, err := n.Pull(ctx, other.Ref("app:v1"), "")
	testkit.Unauthenticated.Check(t, err, other.Ref("app:v1"), testkit.TargetOf(""))
	if other.Count(func(q registry.Request) bool { return q.Authorized }) != 0 {
		t.Errorf("the credential was sent to another registry:\n%s", other.Dump())
	}
	// A wrong credential of the caller is not replaced by the node's.
	_, err = n.PullWith(ctx, reg.Ref("app:v1"), node.PullOptions{Auth: &cri.AuthConfig{Username: "alice", Password: "guessed"}})
	testkit.Unauthenticated.Check(t, err, reg.Ref("app:v1"), testkit.TargetOf(""))

	// Without its credential the node is denied, although it has the image.
	if err := n.Restart(ctx, func(o *node.Options) { o.Extra = "" }); err != nil {
		t.Fatal(err)
	}
	img, err := n.ImageStatus(ctx, reg.Ref("app:v1"), "")
	if err != nil || img == nil {
		t.Fatalf("ImageStatus after the restart: got %v, %v, want the image", img, err)
	}
	_, err = n.Pull(ctx, img.RepoDigests[0], "")
	testkit.Unauthenticated.Check(t, err, img.RepoDigests[0], testkit.TargetOf(""))
}

// TestMirrorsOfTwoRoots checks that a hosts.toml in the second of two config_path roots, as in containerd's default, is
// used, and that changes of it take effect.
func TestMirrorsOfTwoRoots(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	upstream, one, two := testkit.Registry(t), testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{HostsDirs: []string{"certs.d", "docker-certs.d"}})
	for _, r := range []*registry.Registry{upstream, one, two} {
		for _, tag := range []string{"v1", "v2", "v3"} {
			testkit.Push(t, r, "app:"+tag, testkit.App(t, images.Options{Version: tag}))
		}
	}
	pull := func(tag string, from *registry.Registry) {
		t.Helper()
		if _, err := n.Pull(ctx, upstream.Ref("app:"+tag), ""); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*registry.Registry{upstream, one, two} {
			if requested := r.Count() > 0; requested != (r == from) {
				t.Errorf("%s: requests to %s: got %t, want %t\n%s", tag, r.Host(), requested, r == from, r.Dump())
			}
			r.Reset()
		}
	}
	if err := n.WriteHostsIn("docker-certs.d", upstream.Host(), node.Mirror(upstream.URL(), one.URL())); err != nil {
		t.Fatal(err)
	}
	pull("v1", one)
	if err := n.WriteHostsIn("docker-certs.d", upstream.Host(), node.Mirror(upstream.URL(), two.URL())); err != nil {
		t.Fatal(err)
	}
	pull("v2", two)
	if err := os.RemoveAll(n.Path("docker-certs.d", upstream.Host())); err != nil {
		t.Fatal(err)
	}
	pull("v3", upstream)
}

// TestSecretsStaySecret checks that errors, the log at the debug level, verbose statuses and containerd's metadata
// contain no secrets.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	const signature = "a-signature-nobody-else-may-see"
	basic, bearer, storage := testkit.Registry(t), testkit.Registry(t), testkit.Registry(t)
	basic.SetAuth(testkit.OnlyAlice(false))
	bearer.SetAuth(testkit.OnlyAlice(true))
	n := testkit.Node(t, node.Options{})
	both := base64.StdEncoding.EncodeToString([]byte("alice:" + testkit.AlicePassword))

	// Another host name, because HTTP clients may send credentials with redirects to the same host.
	data := strings.Replace(storage.URL(), "127.0.0.1", "localhost", 1) + "/data/1"

	errorTexts := ""
	seq := 0
	attempt := func(reg *registry.Registry, auth *cri.AuthConfig, succeeds bool) {
		t.Helper()
		seq++
		repo := fmt.Sprintf("app%d:v1", seq)
		testkit.Push(t, reg, repo, testkit.App(t, images.Options{Version: repo}))
		_, err := n.PullWith(ctx, reg.Ref(repo), node.PullOptions{Auth: auth})
		if (err == nil) != succeeds {
			t.Errorf("pulling %s: got error %v, want success: %t", repo, err, succeeds)
		}
		if err != nil {
			errorTexts += err.Error() + "\n"
		}
	}
	attempt(basic, testkit.AsAlice(), true)
	attempt(basic, &cri.AuthConfig{Auth: both}, true)
	attempt(bearer, testkit.AsAlice(), true)
	attempt(bearer, &cri.AuthConfig{IdentityToken: testkit.AliceToken}, true)
	attempt(basic, &cri.AuthConfig{Username: "bob", Password: testkit.AlicePassword}, false)
	attempt(bearer, &cri.AuthConfig{Username: "bob", Password: testkit.AlicePassword}, false)
	attempt(basic, &cri.AuthConfig{IdentityToken: testkit.AliceToken, Auth: both + "%"}, false)
	attempt(basic, &cri.AuthConfig{Auth: both + "%"}, false)
	attempt(basic, &cri.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte(testkit.AlicePassword))}, false)
	attempt(basic, &cri.AuthConfig{Auth: both, ServerAddress: "://" + testkit.AlicePassword}, false)
	for _, fault := range []string{"refused", "cut", "down"} {
		elsewhere := http.Header{"Location": {data + "?X-Signature=" + signature + "&X-Other=" + signature}}
		basic.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusTemporaryRedirect, Header: elsewhere}, registry.Is("GET", registry.Blob)))
		switch fault {
		case "refused":
			storage.SetFault(registry.FaultIf(registry.Fault{Status: http.StatusForbidden}))
		case "cut":
			storage.SetFault(registry.FaultIf(registry.Fault{Abort: true}))
		case "down":
			storage.Down()
		}
		attempt(basic, testkit.AsAlice(), false)
		if fault != "down" && storage.Count(func(q registry.Request) bool { return strings.Contains(q.Query, signature) }) == 0 {
			t.Errorf("%s: the redirect was not followed", fault)
		}
		if storage.Count(func(q registry.Request) bool { return q.Authorized }) != 0 {
			t.Errorf("%s: alice's credential was sent to the target of the redirect", fault)
		}
	}

	places := map[string]string{
		"errors":   errorTexts,
		"log":      n.Logs(),
		"state":    strings.Join(testkit.State(t, n).Lines(), "\n"),
		"statuses": statusTexts(ctx, t, n),
	}
	secrets := append(bearer.Tokens(), testkit.AlicePassword, testkit.AliceToken, signature, both, base64.StdEncoding.EncodeToString([]byte(testkit.AlicePassword)))
	if len(secrets) < 7 {
		t.Errorf("the token service issued only %d tokens", len(bearer.Tokens()))
	}
	for place, text := range places {
		if text == "" {
			t.Errorf("%s: empty", place)
		}
		for _, secret := range secrets {
			for line := range strings.Lines(text) {
				if strings.Contains(line, secret) {
					t.Errorf("%s: contains the secret %q: %s", place, secret, line)
				}
			}
		}
	}
}

// statusTexts returns the results of verbose ImageStatus calls for all images.
func statusTexts(ctx context.Context, t *testing.T, n *node.Node) string {
	t.Helper()
	all, err := n.ListImages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, img := range all {
		res, err := n.Images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: img.Id}, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, res.Image, res.Info)
	}
	return b.String()
}
