package decide

import (
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// TestInClusterHint returns a command that changes the revision of an owner, also if the owner has another revision now.
func TestInClusterHint(t *testing.T) {
	for want, owner := range map[string]policy.Owner{
		"Run: kubectl imagepin refresh --namespace shop replicaset/web-1":                                {Kind: "ReplicaSet", Name: "web-1"},
		"Run: kubectl imagepin refresh --namespace shop pod/NAME, with a pod of revision web-5f4d9b8c77": {Kind: "StatefulSet", Name: "web", Revision: "web-5f4d9b8c77"},
	} {
		wantEqual(t, owner.Kind, inClusterHint("refresh", "shop", owner, ""), want)
	}
}
