package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/version"
)

func TestVersion(t *testing.T) {
	address := serveNode(t, recorded())
	got := runAt(t, address, nil, "version", "-o", "json")
	var all versions
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || got.code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", got.code, err, got.out, got.err)
	}
	if all.Client.Imagepin != version.Version || *all.Server != (serverVersion{Imagepin: "0.1.2", Containerd: "v2.4.2+imagepin"}) {
		t.Errorf("got %s", got.out)
	}
	if got := runAt(t, address, nil, "version"); got.code != 0 || !strings.HasSuffix(got.out, "Server:\n  imagepin:    0.1.2\n  containerd:  v2.4.2+imagepin\n") {
		t.Errorf("exit code %d, printed %s%s", got.code, got.out, got.err)
	}
}

// TestVersionWithoutServer checks that the version of the client is always printed.
func TestVersionWithoutServer(t *testing.T) {
	for args, code := range map[string]int{"version": 1, "version --client": 0} {
		got := runAt(t, "/absent", nil, strings.Fields(args)...)
		if got.code != code || !strings.Contains(got.out, "imagepin:  "+version.Version+"\n") || strings.Contains(got.out, "Server") {
			t.Errorf("%s: exit code %d, printed %s%s", args, got.code, got.out, got.err)
		}
		if failed := strings.HasPrefix(got.err, "imagepin: cannot connect to containerd or imagepin serve: "); failed != (code != 0) {
			t.Errorf("%s: printed %q", args, got.err)
		}
	}
}
