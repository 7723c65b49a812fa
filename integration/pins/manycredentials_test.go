package pins

import (
	"fmt"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestManyCredentials pulls an image with many credentials of one namespace, and then with none of them while the registry is down: a
// tenant does not push out the proof of another one.
func TestManyCredentials(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	users := map[string]registry.User{"alice": {Password: testkit.AlicePassword, Repositories: []string{"**"}}}
	const flood = 70
	name := func(n int) string { return fmt.Sprintf("user%d", n) }
	for n := range flood {
		users[name(n)] = registry.User{Password: name(n), Repositories: []string{"**"}}
	}
	r.Reg.SetAuth(&registry.Auth{Users: users})
	ref := r.Reg.Ref("team/app:v1")
	r.Version("team/app:v1", "one")
	pull := func(namespace string, auth *cri.AuthConfig) error {
		pod := &node.Pod{Config: r.PodConfig(node.PodOptions{Namespace: namespace})}
		_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Auth: auth, Pod: pod})
		return err
	}
	if err := pull("shop", testkit.AsAlice()); err != nil {
		t.Fatal(err)
	}
	for n := range flood {
		if err := pull("evil", &cri.AuthConfig{Username: name(n), Password: name(n)}); err != nil {
			t.Fatal(err)
		}
	}
	r.KillAndRestart(nil)
	r.Reg.Down()
	before := r.MustState()
	for range 2 {
		if err := pull("shop", testkit.AsAlice()); err != nil {
			t.Errorf("the first credential: %v", err)
		}
	}
	r.WantState("after pulls without the registry", before)
}
