package observe

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/version"
)

// TestCommandVersion prints the versions of a node.
func TestCommandVersion(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	out, code := r.Operator("version", "-o", "json")
	var got struct{ Server struct{ Imagepin, Containerd string } }
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if got.Server.Imagepin != version.Version || !strings.HasPrefix(got.Server.Containerd, "v2.") {
		t.Errorf("got %s", out)
	}
}
