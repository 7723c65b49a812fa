package pins

import (
	"maps"
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

// What a pull does.
const (
	theirs   = "theirs"   // it asks, and runs what the registry says
	ours     = "ours"     // it asks nobody, and runs what is here
	fallback = "fallback" // it asks, gets no answer, and runs what is here
	fails    = "fails"    // it asks, and fails
)

// conditions are the states of a registry.
var conditions = []struct {
	name  string
	fault *registry.Fault
	want  testkit.Failure
	// asks are the requests of a pull that gets no answer. containerd's resolver asks once more after a 5xx, four times more after a 429, and
	// by GET where HEAD is forbidden; so does stock.
	asks []string
}{
	{name: "up"},
	{name: "down", want: testkit.ManifestUnavailable},
	{name: "slow", want: manifestTimeout, asks: []string{"HEAD manifest"}},
	{name: "401", fault: &registry.Fault{Status: http.StatusUnauthorized}, want: testkit.Unauthenticated, asks: []string{"HEAD manifest"}},
	{name: "403", fault: &registry.Fault{Status: http.StatusForbidden}, want: testkit.Forbidden, asks: []string{"GET manifest", "HEAD manifest"}},
	{name: "404", want: testkit.NoSuchImage, asks: []string{"HEAD manifest"}},
	{name: "429", fault: &registry.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, want: testkit.ManifestUnavailable, asks: slices.Repeat([]string{"HEAD manifest"}, 5)},
	{name: "500", fault: &registry.Fault{Status: http.StatusInternalServerError}, want: testkit.ManifestUnavailable, asks: slices.Repeat([]string{"HEAD manifest"}, 2)},
	{name: "503", fault: &registry.Fault{Status: http.StatusServiceUnavailable}, want: testkit.ManifestUnavailable, asks: slices.Repeat([]string{"HEAD manifest"}, 2)},
}

// behaviorTable says what a pull does, by the conditions of the registry in their order, for an image that is here by a pull of this node, by
// an import, or not at all.
var behaviorTable = map[string]map[string][]string{
	//             up      down      slow      401    403    404    429       500       503
	"default": {
		"pulled":   {theirs, fallback, fallback, fails, fails, fails, fallback, fallback, fallback},
		"imported": {theirs, fallback, fallback, fails, fails, fails, fallback, fallback, fallback},
		"absent":   {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
	},
	"always": {
		"pulled":   {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
		"imported": {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
		"absent":   {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
	},
	"once": {
		"pulled":   {ours, ours, ours, ours, ours, ours, ours, ours, ours},
		"imported": {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
		"absent":   {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
	},
	"prefer-cached": {
		"pulled":   {ours, ours, ours, ours, ours, ours, ours, ours, ours},
		"imported": {ours, ours, ours, ours, ours, ours, ours, ours, ours},
		"absent":   {theirs, fails, fails, fails, fails, fails, fails, fails, fails},
	},
}

// TestPullBehaviors is the table of pull behaviors: for every cell the image that a pull gives or the error, and what it asks. In every cell the
// registry's tag has moved since the image came here.
func TestPullBehaviors(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	up, down := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true, Extra: testkit.BehaviorRules})
	faults := newRepositoryFaults(up)

	// Layers that all have are here, so that every cell has the same to fetch.
	testkit.Push(t, up, "base:v1", testkit.App(t, images.Options{}))
	if _, err := n.Pull(ctx, up.Ref("base:v1"), ""); err != nil {
		t.Fatal(err)
	}
	importedID := importImage(t, n, images.Options{Version: "imported"})

	type cell struct {
		behavior, here, condition string
		does                      string
		want                      testkit.Failure
		asks                      []string
		reg                       *registry.Registry
		repo, had, theirs         string
		pull                      func() (string, error)
	}
	var cells []*cell
	for _, behavior := range slices.Sorted(maps.Keys(behaviorTable)) {
		for _, here := range []string{"pulled", "imported", "absent"} {
			for i, c := range conditions {
				x := &cell{behavior: behavior, here: here, condition: c.name, does: behaviorTable[behavior][here][i], want: c.want, asks: c.asks, reg: up}
				if c.name == "down" {
					x.reg = down
				}
				x.repo = "team/" + behavior + "/" + here + "-" + c.name
				switch here {
				case "pulled":
					testkit.Push(t, x.reg, x.repo+":v1", testkit.App(t, images.Options{Version: "old " + x.repo}))
					id, err := n.Pull(ctx, x.reg.Ref(x.repo+":v1"), "")
					if err != nil {
						t.Fatal(err)
					}
					x.had = id
				case "imported":
					tagImported(t, n, x.reg.Ref(x.repo+":v1"))
					x.had = importedID
				}
				img := testkit.App(t, images.Options{Version: "new " + x.repo})
				testkit.Push(t, x.reg, x.repo+":v1", img)
				id, err := img.ConfigName()
				if err != nil {
					t.Fatal(err)
				}
				x.theirs = id.String()
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
	}
	down.Down()
	up.Reset()
	down.Reset()
	for _, x := range cells {
		ref := x.reg.Ref(x.repo + ":v1")
		x.pull = func() (string, error) { return n.Pull(ctx, ref, "") }
		if x.condition == "slow" {
			x.pull = testkit.Async(x.pull) // all at once: each takes as long as the timeout
		}
	}
	slow := slices.DeleteFunc(slices.Clone(cells), func(x *cell) bool { return x.condition != "slow" })
	cells = append(slices.DeleteFunc(cells, func(x *cell) bool { return x.condition == "slow" }), slow...)
	for _, x := range cells {
		t.Run(x.behavior+" "+x.here+" "+x.condition, func(t *testing.T) {
			ref := x.reg.Ref(x.repo + ":v1")
			got, err := x.pull()
			var want string
			asks := x.asks
			switch x.does {
			case theirs:
				want, asks = x.theirs, []string{"GET blob", "GET blob", "GET manifest", "HEAD manifest"}
			case ours:
				want, asks = x.had, nil
			case fallback:
				want = x.had
				if !slices.ContainsFunc(strings.Split(n.Logs(), "\n"), func(line string) bool {
					return strings.Contains(line, "the registry is unavailable, using the image on the node") && strings.Contains(line, ref)
				}) {
					t.Error("the log does not say that what is here is used")
				}
			}
			if x.does == fails {
				x.want.Check(t, err, ref, testkit.TargetOf(""))
			} else if err != nil || got != want {
				t.Errorf("the pull gives %q and %v, not %q", got, err, want)
			}
			if requests := requestsOf(x.reg, x.repo); !slices.Equal(requests, asks) {
				t.Errorf("the pull asked %q, not %q:\n%s", requests, asks, x.reg.Dump())
			}
			// What a pull fails to get anew is still there.
			status, serr := n.ImageStatus(ctx, ref, "")
			if is := status.GetId(); serr != nil || x.does == fails && is != x.had || x.does != fails && is != want {
				t.Errorf("after the pull the reference means %q (%v)", is, serr)
			}
		})
	}
}

// requestsOf are the requests about a repository, sorted.
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

// repositoryFaults are faults by repository.
type repositoryFaults struct {
	mu sync.Mutex
	of map[string]*registry.Fault
}

func newRepositoryFaults(reg *registry.Registry) *repositoryFaults {
	f := &repositoryFaults{of: make(map[string]*registry.Fault)}
	reg.SetFault(func(q registry.Request) *registry.Fault {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.of[q.Repository]
	})
	return f
}

func (f *repositoryFaults) set(repo string, fault *registry.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[repo] = fault
}

const importedRef = "imported.example/app:v1"

// importImage loads an image from a file, as ctr does, and gives its ID.
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

// tagImported gives what was imported one more name, as ctr does.
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

// TestPullBehaviorsNeedProof has somebody ask for an image that somebody else has pulled. Where the registry would not be asked, the other
// credential is sent to it once, with the digest; where it cannot be asked, the image is not given away.
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

	behaviors := slices.Sorted(maps.Keys(behaviorTable))
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
		// The tag moves: who gets the old image was not told by the registry.
		testkit.Push(t, reg, repo+":v1", testkit.App(t, images.Options{Version: behavior + " moved"}))
	}
	before := testkit.State(t, n)
	for _, behavior := range []string{"once", "prefer-cached"} {
		pull := func(who string, auth *cri.AuthConfig, accepted int) error {
			t.Helper()
			reg.Reset()
			id, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: auth})
			if err == nil && id != ids[behavior] {
				t.Errorf("%s: %s gets %s, not %s", behavior, who, id, ids[behavior])
			}
			heads := 0
			for _, q := range reg.Requests() {
				if q.Method != "HEAD" || q.Reference != digests[behavior] {
					t.Errorf("%s: for %s another question was asked than whether the digest may be read:\n%s", behavior, who, reg.Dump())
				}
				if q.Status == http.StatusOK {
					heads++
				}
			}
			if heads != accepted {
				t.Errorf("%s: %d questions of %s were answered, not %d:\n%s", behavior, heads, who, accepted, reg.Dump())
			}
			if accepted == 0 && err == nil && reg.Count() != 0 {
				t.Errorf("%s: the registry was asked again for %s:\n%s", behavior, who, reg.Dump())
			}
			return err
		}
		for who, auth := range map[string]*cri.AuthConfig{"mallory": as("mallory"), "nobody": nil, "a thief": {Username: "alice", Password: "guessed"}} {
			testkit.Unauthenticated.Check(t, pull(who, auth, 0), ref(behavior), testkit.TargetOf(""))
		}
		if d := node.Diff(before, testkit.State(t, n)); d != "" {
			t.Errorf("%s: pulls that were refused have changed:\n%s", behavior, d)
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
				t.Errorf("%s: %s gets an image that was never given to her", behavior, who)
				continue
			}
			testkit.ManifestUnavailable.Check(t, err, ref(behavior), testkit.TargetOf(""))
		}
		id, err := n.PullWith(ctx, ref(behavior), node.PullOptions{Auth: testkit.AsAlice()})
		if behavior == "always" {
			testkit.ManifestUnavailable.Check(t, err, ref(behavior), testkit.TargetOf(""))
		} else if err != nil || id != ids[behavior] {
			t.Errorf("%s: alice gets %q and %v, not what she has pulled", behavior, id, err)
		}
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("pulls with the registry down have changed:\n%s", d)
	}
}

// TestNoFallbackPastARefusal has a mirror not know the image, or fail, and the registry behind it refuse: containerd's resolver returns one of
// the two, and it must be the refusal that counts. Where no host refuses, what is here is used.
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
			t.Errorf("mirror %d, registry %d: %q and %v, not what is here", test.mirror, test.upstream, got, err)
		}
	}
}

// TestOnceCountsPullsOfThisNode: what another tool has put on the node does not count, and a crash does not make it forget.
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
		t.Errorf("what was pulled before the crash is pulled again: %s, not %s", got, id)
	}
	r.WantNoRequests("a second pull, after a crash,")
	adopted := r.MustStatus(other, "").GetId()
	now := r.MustPull(other, "")
	if now == adopted {
		t.Error("an image that ctr has pulled counts as pulled")
	}
	r.WantRequests("the first pull of what ctr has pulled", "HEAD manifest", "GET manifest", "GET blob", "GET blob")
	if got := r.MustPull(other, ""); got != now {
		t.Errorf("a second pull gives %s, not %s", got, now)
	}
	r.WantNoRequests("the second pull")

	// Gone from the node, it has to be asked for again.
	r.MustRemove(mine, "")
	r.Reg.Reset()
	if got := r.MustPull(mine, ""); got == id {
		t.Error("an image that was removed is there again without having been asked for")
	}
	if r.Reg.Count(registry.Is("HEAD", registry.Manifest)) != 1 {
		t.Errorf("the registry was not asked once:\n%s", r.Reg.Dump())
	}
}
