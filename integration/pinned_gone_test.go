package integration

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
)

var pinnedGone = failure{name: "PinnedDigestGone", code: codes.NotFound}

// TestPinnedDigestGone deletes what a tag is pinned to from the registry and from the node: pulls and containers say so, with all that an operator
// needs to know, and what they say helps.
func TestPinnedDigestGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Extra: consistencyRules, Handlers: otherTargets})
	for _, test := range []struct {
		name, ref, scope string
		pod              node.PodOptions
		moved            bool // whether the tag means something else, or nothing
	}{
		{name: "node", ref: "node/moved:v1", scope: "node", moved: true},
		{name: "node, no tag", ref: "node/gone:v1", scope: "node"},
		{name: "workload", ref: "workload/moved:v1", scope: "workload/shop/pod-template-hash=r1", pod: revision("shop", "pod-template-hash", "r1"), moved: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := r.in(t)
			repo, _, _ := strings.Cut(test.ref, ":")
			old := r.version(test.ref, "old "+test.name)
			ref := r.reg.Ref(test.ref)
			res := r.wantVersion(node.KubeletPod{PodOptions: test.pod, Image: ref}, "old "+test.name)
			since := r.pins(ref)[test.scope].GetMadeAt().AsTime().Format("2006-01-02T15:04:05Z")
			now := ""
			if test.moved {
				now = r.version(test.ref, "new "+test.name)
			}
			r.deleteIndex(repo, old)
			says := func(err error, handler string) {
				t.Helper()
				pinnedGone.check(t, err, ref, targetOf(handler))
				means := "the tag now resolves to " + now
				if !test.moved {
					means = "the registry does not have the tag either"
				}
				for _, word := range []string{old, "since " + since, "in scope " + test.scope, means, "imagepin refresh " + ref + " --scope " + test.scope, "imagepin pin rm " + ref + " --scope " + test.scope} {
					if err != nil && !strings.Contains(err.Error(), word) {
						t.Errorf("the error does not say %q: %v", word, err)
					}
				}
			}
			if test.moved {
				// It is here for one target, and a container needs it for another: it is here as the tag of the first.
				arm := test.pod
				arm.Handler = "arm"
				pod, err := r.RunPod(r.ctx, arm)
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.CreateContainer(r.ctx, pod, node.ContainerOptions{Image: res.ImageID, UserImage: ref})
				says(errors.Unwrap(err), "arm")
				_, err = r.PullWith(r.ctx, ref, node.PullOptions{Pod: pod, Handler: "arm"})
				says(err, "arm")
				r.removePod(pod)
			}
			r.removePod(res.Pod)
			r.remove(res.ImageID, "")
			pod, err := r.RunPod(r.ctx, test.pod)
			if err != nil {
				t.Fatal(err)
			}
			before := r.pins(ref)[test.scope]
			for range 2 {
				_, err = r.PullWith(r.ctx, ref, node.PullOptions{Pod: pod})
				says(err, "")
			}
			if p := r.pins(ref)[test.scope]; p.GetRoot().GetDigest() != before.GetRoot().GetDigest() {
				t.Errorf("the pin has become %v", p)
			}
			if img := r.status(ref, "runc"); img != nil {
				t.Errorf("what cannot be pulled is there: %v", img)
			}
			if !test.moved {
				if _, err := r.control().RemovePin(r.ctx, &api.RemovePinRequest{Ref: ref, Scope: test.scope}); err != nil {
					t.Fatal(err)
				}
				_, err = r.PullWith(r.ctx, ref, node.PullOptions{Pod: pod})
				noSuchImage.check(t, err, ref, targetOf(""))
				return
			}
			done, err := r.control().Refresh(r.ctx, &api.RefreshRequest{Ref: ref, Scope: test.scope})
			if err != nil || !done.Changed || len(done.Refreshed) != 1 || done.Refreshed[0].Before != old || done.Refreshed[0].After != now {
				t.Errorf("the refresh says %v (%v)", done, err)
			}
			r.wantVersion(node.KubeletPod{PodOptions: test.pod, Image: ref}, "new "+test.name)
		})
	}
}

// deleteIndex takes an index and its manifests away from the registry, and their tags.
func (r *rig) deleteIndex(repo, digest string) {
	r.t.Helper()
	resp, err := http.Get(r.reg.URL() + "/v2/" + repo + "/manifests/" + digest)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var index v1.IndexManifest
	if err := json.NewDecoder(resp.Body).Decode(&index); err != nil {
		r.t.Fatal(err)
	}
	for _, m := range index.Manifests {
		if err := r.reg.Delete(repo + "@" + m.Digest.String()); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.reg.Delete(repo + "@" + digest); err != nil {
		r.t.Fatal(err)
	}
}
