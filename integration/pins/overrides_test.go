package pins

import (
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPodOverrides checks that pod annotations set behavior and consistency only if a rule allows it.
func TestPodOverrides(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: `
[plugins."io.containerd.imagepin.v1.images"]
pull_behavior = "always"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/open/first/*", "**/open/second/*"]
allow_pod_override = true
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/open/**"]
pull_behavior = "prefer-cached"
`})
	const behavior, consistency = "io.imagepin.pull-behavior", "io.imagepin.version-consistency"
	for i, test := range []struct {
		repo        string
		annotations map[string]string
		moves       bool // a second pull gets the tag's new image
		pinned      bool
		ignored     string
	}{
		{repo: "plain/app", moves: true},
		{repo: "plain/app", annotations: map[string]string{behavior: "once"}, moves: true, ignored: behavior},
		{repo: "plain/app", annotations: map[string]string{consistency: "node"}, moves: true, ignored: consistency},
		{repo: "open/first/app", moves: true},
		{repo: "open/first/app", annotations: map[string]string{behavior: "once"}},
		{repo: "open/second/app", annotations: map[string]string{behavior: "prefer-cached"}},
		{repo: "open/first/app", annotations: map[string]string{consistency: "node"}, pinned: true},
		{repo: "open/first/app", annotations: map[string]string{consistency: "workload"}, moves: true},
		{repo: "open/first/app", annotations: map[string]string{behavior: "sometimes", consistency: "cluster"}, moves: true, ignored: behavior + ", " + consistency},
		// The first rule that matches applies, and "*" does not match a slash.
		{repo: "open/first/deep/app"},
		{repo: "open/other/app", annotations: map[string]string{behavior: "always"}, ignored: behavior},
	} {
		tag := "t" + string(rune('a'+i))
		ref := r.Reg.Ref(test.repo + ":" + tag)
		pod := &node.Pod{Config: r.PodConfig(node.PodOptions{Annotations: test.annotations})}
		pull := func() string {
			t.Helper()
			id, err := r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod})
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		testkit.Push(t, r.Reg, test.repo+":"+tag, testkit.App(t, images.Options{Version: "old " + tag}))
		offset := r.LogOffset()
		first := pull()
		if logged := strings.Contains(r.LogsSince(offset), "ignoring pod annotations that are not allowed or not valid: "+test.ignored); logged != (test.ignored != "") {
			t.Errorf("%s with %v: log line with ignored annotations %q: got %t", test.repo, test.annotations, test.ignored, logged)
		}
		testkit.Push(t, r.Reg, test.repo+":"+tag, testkit.App(t, images.Options{Version: "new " + tag}))
		if moved := pull() != first; moved != test.moves {
			t.Errorf("%s with %v: second pull: got another image %t, want %t", test.repo, test.annotations, moved, test.moves)
		}
		if pinned := len(r.Pins(ref)) > 0; pinned != test.pinned {
			t.Errorf("%s with %v: got pinned %t, want %t", test.repo, test.annotations, pinned, test.pinned)
		}
	}
}
