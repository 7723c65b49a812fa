package testkit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// A user of the registries of these tests.
const (
	AlicePassword = "alice-has-a-secret"
	AliceToken    = "alice-has-a-token"
)

// AsAlice returns the credential of the user.
func AsAlice() *cri.AuthConfig {
	return &cri.AuthConfig{Username: "alice", Password: AlicePassword}
}

// OnlyAlice allows only the user to read.
func OnlyAlice(bearer bool) *registry.Auth {
	return &registry.Auth{Bearer: bearer, Users: map[string]registry.User{
		"alice": {Password: AlicePassword, IdentityToken: AliceToken, Repositories: []string{"**"}},
	}}
}

// AwaitGoroutines waits until a number of containerd's goroutines are inside a function. There is no other sign that calls
// wait for each other.
func AwaitGoroutines(t *testing.T, n *node.Node, callers int, function string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("%d goroutines are in %s", callers, function), func(ctx context.Context) (bool, error) {
		stacks, err := Goroutines(ctx, n)
		if err != nil {
			return false, err
		}
		inside := 0
		for _, group := range strings.Split(stacks, "\n\n") {
			var same int
			if _, err := fmt.Sscanf(group, "%d @", &same); err == nil && strings.Contains(group, function) {
				inside += same
			}
		}
		return inside >= callers, nil
	})
}

// Goroutines returns containerd's goroutines, grouped by stack, from its debug socket.
func Goroutines(ctx context.Context, n *node.Node) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", n.DebugAddress())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://debug/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	// The first group follows a line that counts all of them.
	_, groups, _ := strings.Cut(string(b), "\n")
	return groups, err
}
