package pins

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

var manifestTimeout = testkit.Failure{Name: "ManifestPullTimeout", Code: codes.DeadlineExceeded, Prefix: "RegistryUnavailable"}

// The outcomes of a pull.
const (
	fromRegistry = "fromRegistry" // sends requests, gets the registry's image
	fromNode     = "fromNode"     // sends no request, gets the node's image
	fallback     = "fallback"     // sends requests, gets no answer, gets the node's image
	fails        = "fails"        // sends requests, fails
)

// conditions are the states of a registry.
var conditions = []struct {
	name  string
	fault *registry.Fault
	want  testkit.Failure
	// requests are those of a pull that gets no answer. As with stock, containerd's resolver retries once after a 5xx
	// and four times after a 429, and sends a GET if HEAD is forbidden.
	requests []string
}{
	{name: "up"},
	{name: "down", want: testkit.ManifestUnavailable},
	{name: "slow", want: manifestTimeout, requests: []string{"HEAD manifest"}},
	{name: "401", fault: &registry.Fault{Status: http.StatusUnauthorized}, want: testkit.Unauthenticated, requests: []string{"HEAD manifest"}},
	{name: "403", fault: &registry.Fault{Status: http.StatusForbidden}, want: testkit.Forbidden, requests: []string{"GET manifest", "HEAD manifest"}},
	{name: "404", want: testkit.NoSuchImage, requests: []string{"HEAD manifest"}},
	{name: "429", fault: &registry.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, want: testkit.ManifestUnavailable, requests: slices.Repeat([]string{"HEAD manifest"}, 5)},
	{name: "500", fault: &registry.Fault{Status: http.StatusInternalServerError}, want: testkit.ManifestUnavailable, requests: slices.Repeat([]string{"HEAD manifest"}, 2)},
	{name: "503", fault: &registry.Fault{Status: http.StatusServiceUnavailable}, want: testkit.ManifestUnavailable, requests: slices.Repeat([]string{"HEAD manifest"}, 2)},
}

// behaviorRows have the outcomes of pulls by condition, for an image that this node pulled, that was imported, or that is absent. They
// have each outcome of each condition, and what distinguishes the behaviors. TestMatrix in package decide has all others.
var behaviorRows = []struct {
	behavior, local string
	outcomes        map[string]string
}{
	{"default", "pulled", map[string]string{
		"up": fromRegistry, "down": fallback, "slow": fallback, "401": fails, "403": fails, "404": fails, "429": fallback, "500": fallback, "503": fallback,
	}},
	{"default", "imported", map[string]string{"503": fallback}},
	{"default", "absent", map[string]string{"503": fails}},
	{"always", "pulled", map[string]string{"up": fromRegistry, "down": fails, "slow": fails, "429": fails, "500": fails, "503": fails}},
	{"once", "pulled", map[string]string{"up": fromNode, "down": fromNode}},
	{"once", "imported", map[string]string{"up": fromRegistry, "503": fails}},
	{"prefer-cached", "imported", map[string]string{"up": fromNode, "down": fromNode}},
	{"prefer-cached", "absent", map[string]string{"up": fromRegistry, "503": fails}},
}

// TestPullBehaviors checks the image or the error of a pull, and its requests. The registry's tag has moved since the node got the
// image.
func TestPullBehaviors(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	up, down := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	faults := newRepositoryFaults(up)

	// The layers that all images share are on the node, so that every cell fetches the same.
	testkit.Push(t, up, "base:v1", testkit.App(t, images.Options{}))
	if _, err := n.Pull(ctx, up.Ref("base:v1"), ""); err != nil {
		t.Fatal(err)
	}
	importedID := importImage(t, n, images.Options{Version: "imported"})

	type cell struct {
		behavior, local, condition string
		outcome                    string
		want                       testkit.Failure
		requests                   []string
		reg                        *registry.Registry
		repo, localID, remoteID    string
		pull                       func() (string, error)
	}
	var cells []*cell
	for _, row := range behaviorRows {
		for _, c := range conditions {
			outcome, ok := row.outcomes[c.name]
			if !ok {
				continue
			}
			x := &cell{behavior: row.behavior, local: row.local, condition: c.name, outcome: outcome, want: c.want, requests: c.requests, reg: up}
			if c.name == "down" {
				x.reg = down
			}
			x.repo = "team/" + row.behavior + "/" + row.local + "-" + c.name
			switch row.local {
			case "pulled":
				testkit.Push(t, x.reg, x.repo+":v1", testkit.App(t, images.Options{Version: "old " + x.repo}))
				id, err := n.Pull(ctx, x.reg.Ref(x.repo+":v1"), "")
				if err != nil {
					t.Fatal(err)
				}
				x.localID = id
			case "imported":
				tagImported(t, n, x.reg.Ref(x.repo+":v1"))
				x.localID = importedID
			}
			img := testkit.App(t, images.Options{Version: "new " + x.repo})
			testkit.Push(t, x.reg, x.repo+":v1", img)
			id, err := img.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			x.remoteID = id.String()
			switch {
			case c.name == "404":
				if err := x.reg.Delete(x.repo + ":v1"); err != nil {
					t.Fatal(err)
				}
			case c.name == "slow":
				faults.set(x.repo, &registry.Fault{Hang: make(chan struct{})})
			case c.fault != nil:
				faults.set(x.repo, c.fault)
			}
			cells = append(cells, x)
		}
	}
	down.Down()
	up.Reset()
	down.Reset()
	for _, x := range cells {
		ref := x.reg.Ref(x.repo + ":v1")
		x.pull = func() (string, error) { return n.Pull(ctx, ref, "") }
		if x.condition == "slow" {
			x.pull = testkit.Async(x.pull) // concurrently: each takes as long as the timeout
		}
	}
	slow := slices.DeleteFunc(slices.Clone(cells), func(x *cell) bool { return x.condition != "slow" })
	cells = append(slices.DeleteFunc(cells, func(x *cell) bool { return x.condition == "slow" }), slow...)
	for _, x := range cells {
		t.Run(x.behavior+" "+x.local+" "+x.condition, func(t *testing.T) {
			ref := x.reg.Ref(x.repo + ":v1")
			got, err := x.pull()
			var want string
			wantRequests := x.requests
			switch x.outcome {
			case fromRegistry:
				want, wantRequests = x.remoteID, []string{"GET blob", "GET blob", "GET manifest", "HEAD manifest"}
			case fromNode:
				want, wantRequests = x.localID, nil
			case fallback:
				want = x.localID
				if !slices.ContainsFunc(strings.Split(n.Logs(), "\n"), func(line string) bool {
					return strings.Contains(line, "the registry is unavailable, using the image on the node") && strings.Contains(line, ref)
				}) {
					t.Error("the log does not report that the image on the node is used")
				}
			}
			if x.outcome == fails {
				x.want.Check(t, err, ref, testkit.TargetOf(""))
			} else if err != nil || got != want {
				t.Errorf("pull: got %q, %v, want %q", got, err, want)
			}
			if requests := requestsOf(x.reg, x.repo); !slices.Equal(requests, wantRequests) {
				t.Errorf("pull: got requests %q, want %q:\n%s", requests, wantRequests, x.reg.Dump())
			}
			// A failed pull keeps the image of the node.
			status, serr := n.ImageStatus(ctx, ref, "")
			if id := status.GetId(); serr != nil || x.outcome == fails && id != x.localID || x.outcome != fails && id != want {
				t.Errorf("ImageStatus after the pull: got %q, %v", id, serr)
			}
		})
	}
}

// requestsOf returns the sorted requests for a repository.
func requestsOf(reg *registry.Registry, repo string) []string {
	var got []string
	for _, q := range reg.Requests() {
		if q.Repository == repo {
			got = append(got, q.Method+" "+string(q.Kind))
		}
	}
	slices.Sort(got)
	return got
}

// repositoryFaults has the faults of repositories.
type repositoryFaults struct {
	mu     sync.Mutex
	byRepo map[string]*registry.Fault
}

func newRepositoryFaults(reg *registry.Registry) *repositoryFaults {
	f := &repositoryFaults{byRepo: make(map[string]*registry.Fault)}
	reg.SetFault(func(q registry.Request) *registry.Fault {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.byRepo[q.Repository]
	})
	return f
}

func (f *repositoryFaults) set(repo string, fault *registry.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byRepo[repo] = fault
}

const importedRef = "imported.example/app:v1"

// importImage imports an image from a file with ctr and returns its ID.
func importImage(t *testing.T, n *node.Node, opts images.Options) string {
	t.Helper()
	img := testkit.App(t, opts)
	ref, err := name.ParseReference(importedRef)
	if err != nil {
		t.Fatal(err)
	}
	path := n.Path("import.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.Write(ref, img, f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Ctr(testkit.Context(t), "images", "import", path); err != nil {
		t.Fatal(err)
	}
	return testkit.WaitForImage(t, n, importedRef)
}

// tagImported adds a name to the imported image, as ctr does.
func tagImported(t *testing.T, n *node.Node, ref string) {
	t.Helper()
	ctx, store := testkit.NSContext(testkit.Context(t)), n.Client().ImageService()
	img, err := store.Get(ctx, importedRef)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(ctx, ctdimages.Image{Name: ref, Target: img.Target}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, n, ref)
}

// TestPullBehaviorsNeedProof checks pulls of an image that another user has pulled. If the pull behavior needs no
// request, the registry verifies the credential once, for the digest. If the registry is down, the pull fails.
func TestPullBehaviorsNeedProof(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	reg.SetAuth(&registry.Auth{Users: map[string]registry.User{
		"alice":   {Password: testkit.AlicePassword, Repositories: []string{"**"}},
		"bob":     {Password: "bob's", Repositories: []string{"**"}},
		"carol":   {Password: "carol's", Repositories: []string{"**"}},
		"mallory": {Password: "mallory's", Repositories: []string{"other/*"}},
	}})
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	as := func(user string) *cri.AuthConfig { return &cri.AuthConfig{Username: user, Password: user + "'s"} }

	behaviors := []string{"always", "default", "once", "prefer-cached"}
	ids, digests := map[string]string{}, map[string]string{}
	ref := func(behavior string) string { return reg.Ref("team/" + behavior + "/app:v1") }
	for _, behavior := range behaviors {
		repo := "team/" + behavior + "/app"
		d := testkit.Push(t, reg, repo+":v1", testkit.App(t, images.Options{Version: behavior}))
		id, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: testkit.AsAlice()})
		if err != nil {
			t.Fatal(err)
		}
		ids[behavior], digests[behavior] = id, d.String()
		// The tag moves, so that only the node resolves it to the old image.
		testkit.Push(t, reg, repo+":v1", testkit.App(t, images.Options{Version: behavior + " moved"}))
	}
	before := testkit.State(t, n)
	for _, behavior := range []string{"once", "prefer-cached"} {
		pull := func(who string, auth *cri.AuthConfig, accepted int) error {
			t.Helper()
			reg.Reset()
			id, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: auth})
			if err == nil && id != ids[behavior] {
				t.Errorf("%s: pull by %s: got %s, want %s", behavior, who, id, ids[behavior])
			}
			heads := 0
			for _, q := range reg.Requests() {
				if q.Method != "HEAD" || q.Reference != digests[behavior] {
					t.Errorf("%s: pull by %s sent another request than HEAD for the digest:\n%s", behavior, who, reg.Dump())
				}
				if q.Status == http.StatusOK {
					heads++
				}
			}
			if heads != accepted {
				t.Errorf("%s: got %d accepted requests by %s, want %d:\n%s", behavior, heads, who, accepted, reg.Dump())
			}
			if accepted == 0 && err == nil && reg.Count() != 0 {
				t.Errorf("%s: the registry got another request for %s:\n%s", behavior, who, reg.Dump())
			}
			return err
		}
		for who, auth := range map[string]*cri.AuthConfig{"mallory": as("mallory"), "nobody": nil, "alice with a wrong password": {Username: "alice", Password: "guessed"}} {
			testkit.Unauthenticated.Check(t, pull(who, auth, 0), ref(behavior), testkit.TargetOf(""))
		}
		if d := node.Diff(before, testkit.State(t, n)); d != "" {
			t.Errorf("%s: denied pulls changed the node's state:\n%s", behavior, d)
		}
		if err := pull("alice", testkit.AsAlice(), 0); err != nil {
			t.Error(err)
		}
		if err := pull("bob", as("bob"), 1); err != nil {
			t.Error(err)
		}
		if err := pull("bob again", as("bob"), 0); err != nil {
			t.Error(err)
		}
		before = testkit.State(t, n)
	}

	reg.Down()
	for _, behavior := range behaviors {
		for who, auth := range map[string]*cri.AuthConfig{"carol": as("carol"), "mallory": as("mallory"), "nobody": nil} {
			_, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: auth})
			if err == nil {
				t.Errorf("%s: %s got an image without a proof", behavior, who)
				continue
			}
			testkit.ManifestUnavailable.Check(t, err, ref(behavior), testkit.TargetOf(""))
		}
		id, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: testkit.AsAlice()})
		if behavior == "always" {
			testkit.ManifestUnavailable.Check(t, err, ref(behavior), testkit.TargetOf(""))
		} else if err != nil || id != ids[behavior] {
			t.Errorf("%s: pull by alice: got %q, %v, want the image that she pulled", behavior, id, err)
		}
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("pulls with the registry down changed the node's state:\n%s", d)
	}
}

// TestNoFallbackPastARefusal checks that a denial by the mirror or by the registry counts, although the other host
// fails or does not have the image. If one host fails and none denies, the image on the node is used.
func TestNoFallbackPastARefusal(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	upstream, mirror := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	if err := n.WriteHosts(upstream.Host(), node.Mirror(upstream.URL(), mirror.URL())); err != nil {
		t.Fatal(err)
	}
	testkit.Push(t, upstream, "app:v1", testkit.App(t, images.Options{}))
	ref := upstream.Ref("app:v1")
	id, err := n.Pull(ctx, ref, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mirror, upstream int
		want             *testkit.Failure
	}{
		{404, 401, &testkit.Unauthenticated}, {500, 401, &testkit.Unauthenticated}, {503, 401, &testkit.Unauthenticated}, {429, 401, &testkit.Unauthenticated},
		{404, 403, &testkit.Forbidden}, {500, 403, &testkit.Forbidden}, {401, 500, &testkit.Unauthenticated}, {403, 404, &testkit.Forbidden},
		{404, 404, &testkit.NoSuchImage}, {404, 500, nil}, {500, 404, nil}, {500, 503, nil},
	} {
		mirror.SetFault(registry.FaultIf(registry.Fault{Status: test.mirror}))
		upstream.SetFault(registry.FaultIf(registry.Fault{Status: test.upstream}))
		got, err := n.Pull(ctx, ref, "")
		switch {
		case test.want != nil:
			test.want.Check(t, err, ref, testkit.TargetOf(""))
		case err != nil || got != id:
			t.Errorf("mirror %d, registry %d: got %q, %v, want the image on the node", test.mirror, test.upstream, got, err)
		}
	}
}

// TestOnceCountsPullsOfThisNode checks that pull_behavior "once" counts only pulls by imagepin, also after a crash.
func TestOnceCountsPullsOfThisNode(t *testing.T) {
	t.Parallel()
	r := &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}
	r.Node = testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	mine, _ := r.PushImage("team/once/mine:v1", testkit.App(t, images.Options{Version: "mine"}))
	other, _ := r.PushImage("team/once/other:v1", testkit.App(t, images.Options{Version: "other"}))
	id := r.MustPull(mine, "")
	if _, err := r.Ctr(r.Ctx, "images", "pull", "--local", "--plain-http", other); err != nil {
		t.Fatal(err)
	}
	testkit.WaitForImage(t, r.Node, other)
	for _, repo := range []string{"mine", "other"} {
		r.PushImage("team/once/"+repo+":v1", testkit.App(t, images.Options{Version: repo + " moved"}))
	}
	r.KillAndRestart(nil)
	r.Reg.Reset()
	if got := r.MustPull(mine, ""); got != id {
		t.Errorf("pull after the crash: got %s, want %s", got, id)
	}
	r.WantNoRequests("a second pull after a crash")
	adopted := r.MustStatus(other, "").GetId()
	now := r.MustPull(other, "")
	if now == adopted {
		t.Error("an image that ctr pulled counts as pulled by imagepin")
	}
	r.WantRequests("the first pull of an image that ctr pulled", "HEAD manifest", "GET manifest", "GET blob", "GET blob")
	if got := r.MustPull(other, ""); got != now {
		t.Errorf("second pull: got %s, want %s", got, now)
	}
	r.WantNoRequests("the second pull")

	// After its removal, the next pull resolves it again.
	r.MustRemove(mine, "")
	r.Reg.Reset()
	if got := r.MustPull(mine, ""); got == id {
		t.Error("the pull after the removal got the removed image")
	}
	if r.Reg.Count(registry.Is("HEAD", registry.Manifest)) != 1 {
		t.Errorf("want 1 HEAD request:\n%s", r.Reg.Dump())
	}
}
