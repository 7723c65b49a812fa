package decide

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// nodeStates are the states of a tag on the node. The caller has no credential.
var nodeStates = map[string]func(t *testing.T, e *env){
	"absent": func(*testing.T, *env) {},
	"pulled": func(t *testing.T, e *env) {
		e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	},
	"other-target": func(t *testing.T, e *env) {
		e.put(t, "old", otherTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	},
	"split": func(t *testing.T, e *env) {
		e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
		e.put(t, "new", otherTarget, imagepin.SourcePull, &resolve.Credential{}, 2)
	},
	"imported-split": func(t *testing.T, e *env) {
		e.put(t, "old", ownTarget, imagepin.SourceImported, nil, 1)
		e.put(t, "new", otherTarget, imagepin.SourcePull, &resolve.Credential{}, 2)
	},
	"adopted":  func(t *testing.T, e *env) { e.put(t, "old", ownTarget, imagepin.SourceAdopted, nil, 1) },
	"imported": func(t *testing.T, e *env) { e.put(t, "old", ownTarget, imagepin.SourceImported, nil, 1) },
	"unproved": func(t *testing.T, e *env) {
		e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{Username: "alice", Password: "secret"}, 1)
	},
	"imported-pulled": func(t *testing.T, e *env) { // with another credential, for another target
		e.put(t, "old", ownTarget, imagepin.SourceImported, nil, 1)
		e.put(t, "old", otherTarget, imagepin.SourcePull, &resolve.Credential{Username: "alice", Password: "secret"}, 2)
	},
}

// tagPresent are the states in which kubelet finds the tag. With IfNotPresent, it looks for the tag before it pulls.
var tagPresent = []string{"pulled", "split", "imported-split", "adopted", "imported", "unproved", "imported-pulled"}

// registryStates are the answers of the registry, in the order of the outcomes: the old digest, the new one, a status, or
// 404 for the tag only.
var registryStates = []struct {
	tag    string
	status int
}{{"old", 0}, {"new", 0}, {"old", 404}, {"old", 401}, {"old", 503}, {"gone", 0}}

// outcomes maps states of the node, separated by spaces, to what a container runs for each answer of the registry: a
// version, with "!" if no request is sent, "absent" if ImageStatus does not report the image, or the status that the call
// fails with.
type outcomes map[string]string

const (
	byRegistry    = "old new 404 401 503 404" // the registry decides
	fallback      = "old new 404 401 old 404" // the registry decides; if it is unavailable, the image on the node
	oldByRegistry = "old old 404 401 503 old" // the registry only authorizes the caller, also by digest if the tag is gone
	newByRegistry = "new new 404 401 503 new"
	oldIfDown     = "old old 404 401 old old" // the registry authorizes the caller, or is unavailable
	newIfDown     = "new new 404 401 new new"
	notOnTheNode  = "absent absent absent absent absent absent" // kubelet pulls, or fails with imagePullPolicy Never
	oldNoRequest  = "old! old! old! old! old! old!"
	newNoRequest  = "new! new! new! new! new! new!"

	all = "absent pulled other-target split imported-split adopted imported unproved imported-pulled"
)

// cell is a cell of the matrix: its text in the document, and the outcomes. In the last column, want has the outcomes
// with the old digest pinned, and other those with the new digest.
type cell struct {
	text  string
	want  outcomes
	other outcomes
}

type row struct {
	pullPolicy string
	behavior   policy.Behavior // empty means any
	off        cell
	unpinned   cell
	pinned     cell
}

// withoutPull are the outcomes without a pull.
var withoutPull = outcomes{strings.Join(tagPresent, " "): oldNoRequest}

// matrix is the matrix of docs/digest-policy.md.
var matrix = []row{
	{
		"`Always`", policy.Default,
		cell{text: "HEAD tag, runs the returned digest; without an answer, the image on the node", want: outcomes{
			"absent adopted unproved imported-pulled": byRegistry, "pulled other-target split imported-split imported": fallback,
		}},
		cell{text: "the same, and pins it"},
		cell{text: "HEAD tag, after a 404 HEAD digest, runs the pinned digest; without an answer, only if it is on the node", want: outcomes{
			"absent adopted unproved imported-pulled": oldByRegistry, "pulled other-target split imported-split imported": oldIfDown,
		}, other: outcomes{
			"absent pulled other-target adopted imported unproved imported-pulled": newByRegistry, "split imported-split": newIfDown,
		}},
	},
	{
		"`Always`", policy.Always,
		cell{text: "HEAD tag, runs the returned digest", want: outcomes{all: byRegistry}},
		cell{text: "the same, and pins it"},
		cell{text: "HEAD tag, after a 404 HEAD digest, runs the pinned digest; fails without an answer", want: outcomes{all: oldByRegistry}, other: outcomes{all: newByRegistry}},
	},
	{
		"`Always`", policy.Once,
		cell{text: "pulled on this node before: no request, runs that image; else as `always`", want: outcomes{
			"absent adopted imported": byRegistry, "pulled other-target split": oldNoRequest, "imported-split": newNoRequest, "unproved imported-pulled": oldByRegistry,
		}},
		cell{text: "the same, and pins it"},
		cell{text: "the pinned digest was pulled and is on the node: no request; else as `always`", want: outcomes{
			"absent adopted imported imported-split unproved imported-pulled": oldByRegistry, "pulled other-target split": oldNoRequest,
		}, other: outcomes{
			"absent pulled other-target adopted imported unproved imported-pulled": newByRegistry, "split imported-split": newNoRequest,
		}},
	},
	{
		"`Always`", policy.PreferCached,
		cell{text: "on the node: no request, runs that image; else as `always`", want: outcomes{
			"absent": byRegistry, "pulled other-target split imported-split imported": oldNoRequest, "adopted unproved imported-pulled": oldByRegistry,
		}},
		cell{text: "the same, and pins it"},
		cell{text: "the pinned digest is on the node: no request; else as `always`", want: outcomes{
			"absent adopted unproved imported-pulled": oldByRegistry, "pulled other-target split imported-split imported": oldNoRequest,
		}, other: outcomes{
			"absent pulled other-target adopted imported unproved imported-pulled": newByRegistry, "split imported-split": newNoRequest,
		}},
	},
	{
		"`IfNotPresent`, not on the node", "",
		cell{text: "the row of `Always`"}, cell{text: "the row of `Always`"}, cell{text: "the row of `Always`"},
	},
	{
		"`IfNotPresent`, on the node", "",
		cell{text: "no pull, no request: runs the image on the node", want: withoutPull},
		cell{text: "no pull: CreateContainer pins the image on the node"},
		cell{
			text: "no pull: CreateContainer runs the pinned digest", want: withoutPull,
			other: outcomes{strings.Join(tagPresent, " "): notOnTheNode},
		},
	},
	{
		"`Never`", "",
		cell{text: "no pull, no request; kubelet fails if it is not on the node", want: withoutPull},
		cell{text: "as `IfNotPresent`, on the node"},
		cell{text: "as `IfNotPresent`, on the node", want: withoutPull, other: outcomes{strings.Join(tagPresent, " "): notOnTheNode}},
	},
}

// TestMatrix tests every cell of the matrix with every state of the node and every answer of the registry.
func TestMatrix(t *testing.T) {
	for _, r := range matrix {
		behaviors := []policy.Behavior{r.behavior}
		if r.behavior == "" {
			behaviors = []policy.Behavior{policy.Default, policy.Always, policy.Once, policy.PreferCached}
		}
		pulls := strings.Contains(r.pullPolicy, "Always")
		for _, behavior := range behaviors {
			name := fmt.Sprintf("%s %s", r.pullPolicy, behavior)
			testCell(t, name+" off", pulls, behavior, off, "", r.off.want)
			testCell(t, name+" unpinned", pulls, behavior, byNode, "", r.off.want)
			for _, by := range []authority{byNode, byLock, byCluster} {
				testCell(t, fmt.Sprintf("%s pinned old by the %s", name, by.name), pulls, behavior, by, "old", r.pinned.want)
				testCell(t, fmt.Sprintf("%s pinned new by the %s", name, by.name), pulls, behavior, by, "new", r.pinned.other)
			}
		}
	}
}

// authority is what pins a tag in a cell of the matrix. All pins have the same outcomes.
type authority struct {
	name        string
	consistency policy.Consistency
	scope       policy.Scope
	pod         policy.Pod
	pin         func(t *testing.T, e *env, version string)
	// states are the states of the node that are tested; empty means all. What a state does depends on the digest, not on what pins it.
	states string
}

// distinct are states of the node that differ in what is on it, and in who may have it.
const distinct = "absent pulled split unproved"

var (
	off    = authority{consistency: policy.Off, scope: policy.NodeScope}
	byNode = authority{name: "node", consistency: policy.Node, scope: policy.NodeScope, pin: func(t *testing.T, e *env, version string) {
		_, err := e.pins.MakeForNamespace(e.ctx, "", e.id(policy.NodeScope), roots[version], pin.ByUse, false)
		noError(t, err)
	}}
	byLock    = authority{name: "lock", states: distinct, consistency: policy.Off, scope: policy.LockScope, pin: func(_ *testing.T, e *env, version string) { e.lock(version) }}
	byCluster = authority{
		name: "cluster", states: distinct, consistency: policy.Workload, scope: firstScope, pod: webPod("web-1-a"), pin: func(t *testing.T, e *env, version string) {
			e.join(newFakeCluster(), false)
			e.member.pins["uid-1 "+e.ref.String()] = roots[version].Digest
			_, err := e.pins.Follow(e.ctx, e.id(firstScope), roots[version], false, "other") // the node's copy
			noError(t, err)
		},
	}
)

// testCell tests one cell. pinned is the version that the tag is pinned to by the authority.
func testCell(t *testing.T, name string, pulls bool, behavior policy.Behavior, by authority, pinned string, want outcomes) {
	var tested []string
	for states, results := range want {
		for _, state := range strings.Fields(states) {
			tested = append(tested, state)
			if by.states != "" && !slices.Contains(strings.Fields(by.states), state) {
				continue
			}
			for i, result := range strings.Fields(results) {
				answer := registryStates[i]
				t.Run(fmt.Sprintf("%s/%s/%s %d", name, state, answer.tag, answer.status), func(t *testing.T) {
					e := newEnv(t, policy.Rule{Behavior: behavior, Consistency: by.consistency})
					nodeStates[state](t, e)
					if pinned != "" {
						by.pin(t, e, pinned)
					}
					e.registry.tag.Store(answer.tag)
					e.registry.status.Store(int32(answer.status))
					got, err := e.start(t, pulls, by.pod)
					if got != result {
						t.Errorf("got %s, want %s: %v", got, result, err)
					}
					e.checkPin(t, got, by, pinned)
				})
			}
		}
	}
	expected := strings.Fields(all)
	if !pulls {
		expected = slices.Clone(tagPresent)
	}
	slices.Sort(tested)
	if slices.Sort(expected); len(want) > 0 && !slices.Equal(tested, expected) {
		t.Errorf("%s: the matrix has the states %q, want %q", name, tested, expected)
	}
}

// start simulates the start of a container and returns the outcome in the notation of the matrix.
func (e *env) start(t *testing.T, pulls bool, pod policy.Pod) (string, error) {
	t.Helper()
	var run digest.Digest
	if pulls {
		q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: pod, Target: ownTarget})
		noError(t, err)
		v, err := e.Decide(e.ctx, q)
		if err == nil {
			v, err = e.pinFirstUse(e.ctx, v)
		}
		switch {
		case errdefs.IsNotFound(err):
			return "404", err
		case errdefs.IsUnauthorized(err):
			return "401", err
		case resolve.Unavailable(err):
			return "503", err
		case err != nil:
			return "error", err
		}
		run = v.Root.Digest
	} else {
		present := e.images.ByRef(e.ref.String())
		run = present[slices.IndexFunc(present, func(i imagepin.Entry) bool { return i.Target == ownTarget })].Root.Digest
		q, err := e.described(e.ctx, e.ref, pod)
		noError(t, err)
		if q.Pin != nil { // ImageStatus reports only the pinned digest
			run = q.Pin.Root.Digest
			ready := func(i imagepin.Entry) bool { return i.Target == ownTarget }
			if !slices.ContainsFunc(OfDigest(e.images, e.ref, run), ready) {
				return "absent", nil
			}
		}
		used, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: pod, Root: roots[version(run)], Verified: true})
		noError(t, err)
		if used != nil && used.Root.Digest != run {
			t.Errorf("pinned %s, but ran %s", version(used.Root.Digest), version(run))
		}
	}
	if e.registry.requests.Load() == 0 {
		return version(run) + "!", nil
	}
	return version(run), nil
}

// checkPin checks the pin after a start. Unless the consistency is off, the version that ran is pinned. An existing pin
// does not change.
func (e *env) checkPin(t *testing.T, ran string, by authority, before string) {
	t.Helper()
	want := before
	if v := strings.TrimSuffix(ran, "!"); before == "" && by.consistency != policy.Off && roots[v].Digest != "" {
		want = v
	}
	if got := e.pinned(by.scope); got != want {
		t.Errorf("pinned %q, want %q", got, want)
	}
}

// TestMatrixInTheDocument checks that docs/digest-policy.md has this matrix.
func TestMatrixInTheDocument(t *testing.T) {
	lines := []string{
		"| imagePullPolicy | `pull_behavior` | `version_consistency = \"off\"` | `\"node\"` or `\"workload\"`, no pin yet | pinned |",
		"|---|---|---|---|---|",
	}
	for _, r := range matrix {
		behavior := "any"
		if r.behavior != "" {
			behavior = "`" + string(r.behavior) + "`"
		}
		lines = append(lines, "| "+strings.Join([]string{r.pullPolicy, behavior, r.off.text, r.unpinned.text, r.pinned.text}, " | ")+" |")
	}
	doc, err := os.ReadFile("../../../docs/digest-policy.md")
	noError(t, err)
	_, section, _ := strings.Cut(string(doc), "\n## The matrix\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if table := strings.Join(lines, "\n"); !strings.Contains(section, "\n"+table+"\n") {
		t.Errorf("docs/digest-policy.md does not have the tested matrix:\n%s", table)
	}
}
