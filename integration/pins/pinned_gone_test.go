package pins

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

var pinnedGone = testkit.Failure{Name: "PinnedDigestGone", Code: codes.NotFound}

// TestPinnedDigestGone deletes a pinned digest from the registry and from the node. The errors of pulls and containers
// describe the pin and name the commands that help. These commands work.
func TestPinnedDigestGone(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	for _, test := range []struct {
		name, ref, scope string
		pod              node.PodOptions
		moved            bool // the tag has moved; otherwise it is gone
	}{
		{name: "node", ref: "node/moved:v1", scope: "node", moved: true},
		{name: "node, no tag", ref: "node/gone:v1", scope: "node"},
		{name: "workload", ref: "workload/moved:v1", scope: "workload/shop/pod-template-hash=r1", pod: revision("shop", "pod-template-hash", "r1"), moved: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := r.In(t)
			repo, _, _ := strings.Cut(test.ref, ":")
			old := r.Version(test.ref, "old "+test.name)
			ref := r.Reg.Ref(test.ref)
			res := r.WantVersion(node.KubeletPod{PodOptions: test.pod, Image: ref}, "old "+test.name)
			since := r.Pins(ref)[test.scope].GetMadeAt().AsTime().Format("2006-01-02T15:04:05Z")
			now := ""
			if test.moved {
				now = r.Version(test.ref, "new "+test.name)
			}
			deleteIndex(r, repo, old)
			check := func(err error, handler string) {
				t.Helper()
				pinnedGone.Check(t, err, ref, testkit.TargetOf(handler))
				tagState := "the tag now resolves to " + now
				if !test.moved {
					tagState = "the registry does not have the tag either"
				}
				for _, word := range []string{old, "since " + since, "in scope " + test.scope, tagState, "imagepin refresh " + ref + " --scope " + test.scope, "imagepin pin rm " + ref + " --scope " + test.scope} {
					if err != nil && !strings.Contains(err.Error(), word) {
						t.Errorf("the error does not contain %q: %v", word, err)
					}
				}
			}
			if test.moved {
				// The image is ready for the default handler only, and a container needs it for another one.
				arm := test.pod
				arm.Handler = "arm"
				pod, err := r.RunPod(r.Ctx, arm)
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: res.ImageID, UserImage: ref})
				check(errors.Unwrap(err), "arm")
				_, err = r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod, Handler: "arm"})
				check(err, "arm")
				r.MustRemovePod(pod)
			}
			r.MustRemovePod(res.Pod)
			r.MustRemove(res.ImageID, "")
			pod, err := r.RunPod(r.Ctx, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			before := r.Pins(ref)[test.scope]
			for range 2 {
				_, err = r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod})
				check(err, "")
			}
			if p := r.Pins(ref)[test.scope]; p.GetRoot().GetDigest() != before.GetRoot().GetDigest() {
				t.Errorf("the pin changed to %v", p)
			}
			if img := r.MustStatus(ref, "runc"); img != nil {
				t.Errorf("ImageStatus after the failed pulls: got %v, want none", img)
			}
			if !test.moved {
				if _, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: ref, Scope: test.scope}); err != nil {
					t.Fatal(err)
				}
				_, err = r.PullWith(r.Ctx, ref, node.PullOptions{Pod: pod})
				testkit.NoSuchImage.Check(t, err, ref, testkit.TargetOf(""))
				return
			}
			done, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: ref, Scope: test.scope})
			if err != nil || !done.Changed || len(done.Refreshed) != 1 || done.Refreshed[0].Before != old || done.Refreshed[0].After != now {
				t.Errorf("Refresh: got %v, %v", done, err)
			}
			r.WantVersion(node.KubeletPod{PodOptions: test.pod, Image: ref}, "new "+test.name)
		})
	}
}

// TestPinSurvivesItsTag deletes a pinned tag from the registry, which keeps its digest. Pods of the pin start, for another target
// and after the image was removed from the node. Each pull sends a HEAD for the tag and one for the digest.
func TestPinSurvivesItsTag(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	for name, pod := range map[string]node.PodOptions{"node": {}, "workload": revision("shop", "pod-template-hash", "r1")} {
		t.Run(name, func(t *testing.T) {
			r := r.In(t)
			tag := name + "/untagged:v1"
			r.Version(tag, "old "+name)
			ref := r.Reg.Ref(tag)
			res := r.WantVersion(node.KubeletPod{PodOptions: pod, Image: ref}, "old "+name)
			r.MustRemovePod(res.Pod)
			if err := r.Reg.Delete(tag); err != nil {
				t.Fatal(err)
			}
			start := func(handler string) {
				t.Helper()
				r.Reg.Reset()
				of := pod
				of.Handler = handler
				r.MustRemovePod(r.WantVersion(node.KubeletPod{PodOptions: of, Image: ref, Always: true}, "old "+name).Pod)
				if n := r.Reg.Count(registry.Is("HEAD", registry.Manifest)); n != 2 {
					t.Errorf("handler %q: got %d HEAD requests, want 2:\n%s", handler, n, r.Reg.Dump())
				}
			}
			start("")
			start("arm")
			r.MustRemove(res.ImageID, "")
			start("")
		})
	}
}

// deleteIndex deletes an index, its manifests and their tags from the registry.
func deleteIndex(r *testkit.Rig, repo, digest string) {
	r.T.Helper()
	resp, err := http.Get(r.Reg.URL() + "/v2/" + repo + "/manifests/" + digest)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	var index v1.IndexManifest
	if err := json.NewDecoder(resp.Body).Decode(&index); err != nil {
		r.T.Fatal(err)
	}
	for _, m := range index.Manifests {
		if err := r.Reg.Delete(repo + "@" + m.Digest.String()); err != nil {
			r.T.Fatal(err)
		}
	}
	if err := r.Reg.Delete(repo + "@" + digest); err != nil {
		r.T.Fatal(err)
	}
}
