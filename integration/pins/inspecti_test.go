package pins

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// inspectedKey is a key in the verbose status of an image.
type inspectedKey struct {
	Ref         string    `json:"ref"`
	Platform    string    `json:"platform"`
	Snapshotter string    `json:"snapshotter"`
	Handlers    []string  `json:"handlers"`
	Digest      string    `json:"digest"`
	Manifest    string    `json:"manifest"`
	ReadyAt     time.Time `json:"readyAt"`
	Source      string    `json:"source"`
	Host        string    `json:"host"`
	Record      string    `json:"record"`
	Rule        struct {
		Match              string `json:"match"`
		PullBehavior       string `json:"pullBehavior"`
		VersionConsistency string `json:"versionConsistency"`
		Retain             bool   `json:"retain"`
		AllowPodOverride   bool   `json:"allowPodOverride"`
	} `json:"rule"`
	Pins []inspectedPin `json:"pins"`
}

type inspectedPin struct {
	Scope  string    `json:"scope"`
	Digest string    `json:"digest"`
	Since  time.Time `json:"since"`
	By     string    `json:"by"`
	Retain bool      `json:"retain"`
	Drift  *struct {
		Digest string    `json:"digest"`
		Since  time.Time `json:"since"`
	} `json:"drift"`
}

// inspecti returns the keys that `crictl inspecti` shows of an image, by reference and snapshotter.
func inspecti(r *testkit.Rig, ref string) map[string]inspectedKey {
	r.T.Helper()
	resp, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}, Verbose: true})
	if err != nil {
		r.T.Fatal(err)
	}
	var info struct{ Keys []inspectedKey }
	if err := json.Unmarshal([]byte(resp.GetInfo()["imagepin"]), &info); err != nil {
		r.T.Fatalf("verbose status of %s: got %q: %v", ref, resp.GetInfo()["imagepin"], err)
	}
	keys := make(map[string]inspectedKey)
	for _, k := range info.Keys {
		keys[k.Ref+" "+k.Snapshotter] = k
	}
	return keys
}

// TestInspectShowsPolicyAndPins checks the output of crictl inspecti for a reference without a pin, with a drifted pin,
// and with pins in two scopes.
func TestInspectShowsPolicyAndPins(t *testing.T) {
	r := testkit.NewRig(t, node.Options{Extra: testkit.PinRules})
	start := time.Now().Add(-time.Second)

	free, freeDigest := r.Push("repo/app:1", images.Options{Version: "free"}, images.HostPlatform())
	r.MustPull(free, "")
	for _, ref := range []string{free, freeDigest} {
		k, ok := inspecti(r, free)[ref+" overlayfs"]
		if !ok {
			t.Fatalf("inspecti: no key of %s in %v", ref, inspecti(r, free))
		}
		if k.Digest != testkit.DigestIn(freeDigest) || k.Platform != images.HostPlatform() || k.Source != "pull" || k.Host != r.Reg.Host() ||
			!slices.Equal(k.Handlers, []string{"runc"}) || k.Manifest == "" || k.Record != freeDigest || k.ReadyAt.Before(start) {
			t.Errorf("key of %s: got %+v", ref, k)
		}
		if len(k.Pins) != 0 || k.Rule.Match != "" || k.Rule.PullBehavior != "default" || k.Rule.VersionConsistency != "off" || k.Rule.Retain {
			t.Errorf("%s: got rule %+v and pins %+v, want the defaults and no pins", ref, k.Rule, k.Pins)
		}
	}

	pinned, first := r.Push("pinned/app:1", images.Options{Version: "p1"}, images.HostPlatform())
	r.MustPull(pinned, "")
	k := inspecti(r, pinned)[pinned+" overlayfs"]
	if k.Rule.Match != "**/pinned/*" || k.Rule.PullBehavior != "default" || k.Rule.VersionConsistency != "node" || !k.Rule.Retain || k.Rule.AllowPodOverride {
		t.Errorf("%s: got rule %+v", pinned, k.Rule)
	}
	if len(k.Pins) != 1 {
		t.Fatalf("%s: got pins %+v, want 1", pinned, k.Pins)
	}
	if p := k.Pins[0]; p.Scope != "node" || p.Digest != testkit.DigestIn(first) || p.By != "use" || !p.Retain || p.Drift != nil || p.Since.Before(start) {
		t.Errorf("%s: got pin %+v", pinned, p)
	}

	_, second := r.Push("pinned/app:1", images.Options{Version: "p2"}, images.HostPlatform())
	r.MustPull(pinned, "")
	k = inspecti(r, pinned)[pinned+" overlayfs"]
	if len(k.Pins) != 1 || k.Digest != testkit.DigestIn(first) {
		t.Fatalf("key of %s after its tag moved: got %+v", pinned, k)
	}
	if d := k.Pins[0].Drift; d == nil || d.Digest != testkit.DigestIn(second) || d.Since.Before(start) {
		t.Errorf("drift of %s after its tag moved: got %+v, want %s", pinned, d, second)
	}

	const workload = "workload/shop/pod-template-hash=5d9"
	if out, code := r.Operator("pin", "set", pinned, testkit.DigestIn(second), "--scope", workload); code != 0 {
		t.Fatalf("imagepin pin set: exit code %d: %s", code, out)
	}
	k = inspecti(r, pinned)[pinned+" overlayfs"]
	if len(k.Pins) != 2 || k.Pins[0].Scope != "node" || k.Pins[1].Scope != workload || k.Pins[1].Digest != testkit.DigestIn(second) || k.Pins[1].By != "operator" {
		t.Errorf("%s with a workload pin: got pins %+v", pinned, k.Pins)
	}
}
