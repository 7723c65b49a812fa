package pins

import (
	"slices"
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

// TestPodOptsImagesOut checks that a pod opts single images out of the pins of its revision, where a rule allows it: their tags move
// for each pod, and the other images of the pod stay at the digest of the revision.
func TestPodOptsImagesOut(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: `
[plugins."io.containerd.imagepin.v1.images"]
version_consistency = "workload"
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/open/**"]
allow_pod_override = true
`})
	for i, test := range []struct {
		annotation string
		moves      []string // images that a later pod of the revision resolves again
		ignored    int      // images for which the log says that the annotation is ignored
	}{
		{annotation: "**/proxy:*=off", moves: []string{"open/proxy"}, ignored: 1},
		{annotation: "off, **/open/app:*=workload", moves: []string{"open/proxy"}, ignored: 1},
		{annotation: "**/open/app:*=workload, **/open/**=off", moves: []string{"open/proxy"}},
		{annotation: "workload", ignored: 1}, // as the rules say
		{annotation: "**/proxy:*=off, proxy=off", ignored: 3},
	} {
		r.WantOperator(1, []string{"resolve", r.Reg.Ref("open/app:v1"), "--pod", "shop/nobody"}, "UnknownPod", `"shop/nobody"`)
		revision := "r" + string(rune('a'+i))
		pod := func(version string) map[string]string {
			t.Helper()
			opts := node.PodOptions{
				Namespace: "shop", Labels: map[string]string{"pod-template-hash": revision}, Annotations: map[string]string{"io.imagepin.version-consistency": test.annotation},
			}
			p, err := r.RunPod(r.Ctx, opts)
			if err != nil {
				t.Fatal(err)
			}
			runs := make(map[string]string)
			for _, name := range []string{"open/app", "open/proxy", "shut/proxy"} {
				tag := name + ":" + revision
				r.Version(tag, version+" "+name)
				id, err := r.PullWith(r.Ctx, r.Reg.Ref(tag), node.PullOptions{Pod: p})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.CreateContainer(r.Ctx, p, node.ContainerOptions{Image: id, UserImage: r.Reg.Ref(tag)}); err != nil {
					t.Fatal(err)
				}
				runs[name] = id
				wantResolved(r, r.Reg.Ref(tag), p, revision, slices.Contains(test.moves, name))
			}
			r.MustRemovePod(p)
			return runs
		}
		offset := r.LogOffset()
		first := pod("first")
		var ignored []string
		for line := range strings.Lines(r.LogsSince(offset)) {
			const field = ` ref="`
			if _, rest, ok := strings.Cut(line, field); ok && strings.Contains(line, "ignoring pod annotations that are not allowed or not valid: io.imagepin.version-consistency") {
				ref, _, _ := strings.Cut(rest, `"`)
				ignored = append(ignored, ref)
			}
		}
		slices.Sort(ignored)
		if ignored = slices.Compact(ignored); len(ignored) != test.ignored {
			t.Errorf("%q: the log says that the annotation is ignored for %q, want %d", test.annotation, ignored, test.ignored)
		}
		second := pod("second")
		for name, id := range first {
			moves := slices.Contains(test.moves, name)
			if (second[name] != id) != moves {
				t.Errorf("%q: %s: the second pod runs %s, the first %s, want it to move: %v", test.annotation, name, second[name], id, moves)
			}
			_, pinned := r.Pins(r.Reg.Ref(name + ":" + revision))["workload/shop/pod-template-hash="+revision]
			if pinned == moves {
				t.Errorf("%q: %s: got pinned %v", test.annotation, name, pinned)
			}
		}
	}
}

// wantResolved checks what imagepin resolve shows for a pod: the version consistency that applies to it, and its pin if there is one.
func wantResolved(r *testkit.Rig, ref string, p *node.Pod, revision string, out bool) {
	r.T.Helper()
	name := p.Config.GetMetadata().GetNamespace() + "/" + p.Config.GetMetadata().GetName()
	want := []string{"Pod:        " + name, "version_consistency workload", "scope workload/shop/pod-template-hash=" + revision}
	if out {
		want = []string{"Pod:        " + name, "version_consistency off", "Pin:        none"}
	}
	r.WantOperator(0, []string{"resolve", ref, "--pod", name}, want...)
}
