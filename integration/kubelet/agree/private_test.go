package agree

import (
	"encoding/base64"
	"encoding/json"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// alice are the pull secrets of pods that may pull the private repository of a test.
var alice = []core.LocalObjectReference{{Name: "alice"}}

// private makes the repository private, and creates the pull secret.
func (r *rig) private() {
	r.t.Helper()
	r.reg.SetAuth(&registry.Auth{Users: map[string]registry.User{"alice": {Password: "opensesame", Repositories: []string{repository}}}})
	auth := base64.StdEncoding.EncodeToString([]byte("alice:opensesame"))
	config, err := json.Marshal(map[string]any{"auths": map[string]any{r.reg.Host(): map[string]string{"auth": auth}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.do("POST", r.core("secrets"), &core.Secret{
		ObjectMeta: meta.ObjectMeta{Name: "alice"}, Type: core.SecretTypeDockerConfigJson,
		Data: map[string][]byte{core.DockerConfigJsonKey: config},
	}, nil)
}

// TestPrivateImage runs a private image with pull policy IfNotPresent. The nodes have the tag's newer digest already. They
// pull the digest of the ImagePin with the pod's secret.
func TestPrivateImage(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	r.private()
	start := func(name string, replicas int32, policy core.PullPolicy) {
		t.Helper()
		d := r.deployment(name, replicas)
		d.Spec.Template.Spec.ImagePullSecrets = alice
		d.Spec.Template.Spec.Containers[0].ImagePullPolicy = policy
		r.do("POST", r.apps("deployments"), d, nil)
	}
	first := r.push("1")
	start("web", 1, core.PullIfNotPresent)
	r.wantDigest(r.running("web", 1, rollout, "1"), first)
	second := r.push("2")
	start("other", 3, core.PullAlways)
	r.wantDigest(r.running("other", 3, rollout, "1"), second)

	later := r.reg.Later()
	r.scale(r.apps("deployments", "web"), 3)
	pods := r.running("web", 3, rollout, "1")
	r.wantDigest(pods, first)
	r.agreed(pods, "")
	pulls := r.reg.Count(later, func(q registry.Request) bool { return q.Reference == first && q.User == "alice" && q.Status == 200 })
	if pulls < 2 {
		t.Errorf("got %d requests of alice for %s, want one of each node:\n%s", pulls, first, r.reg.Dump())
	}
}

// TestMirrors gives each node a mirror that has only a digest of its own. Nodes whose mirror does not have the digest of
// the ImagePin pull it from the registry.
func TestMirrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	r.host = r.ns + ".example.com"
	for _, m := range three.Members {
		mirror := testkit.Registry(t)
		idx := r.app(r.ns + m.Name)
		testkit.Push(t, mirror, tag, idx)
		testkit.Push(t, r.reg, tag, idx)
		if err := m.WriteHosts(r.host, node.Mirror(r.reg.URL(), mirror.URL())); err != nil {
			t.Fatal(err)
		}
	}
	r.do("POST", r.apps("deployments"), r.deployment("web", 3), nil)
	r.agreed(r.running("web", 3, rollout, "1"), "")
}
