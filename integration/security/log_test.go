package security

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// logfmt matches a line of a log in the format "text".
var logfmt = regexp.MustCompile(`^(?:[\w.-]+=(?:"(?:[^"\\]|\\.)*"|[^\s"=]*) ?)+$`)

// TestLogLines makes pulls fail in every way that containerd's resolver logs. Each line of the log has the configured
// format and no secret. imagepin serve logs text.
func TestLogLines(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			ctx := testkit.Context(t)
			reg := testkit.Registry(t)
			reg.SetAuth(testkit.OnlyAlice(true))
			n := testkit.Node(t, node.Options{NoPods: true, Extra: "[debug]\nformat = \"" + format + "\"\n"})
			never := make(chan struct{})
			defer close(never)
			head, blob := registry.Is("HEAD", ""), registry.Is("GET", registry.Blob)
			const signed = "http://alice:hush@127.0.0.1:1/data?sig=hush&token=hush"
			pull := func(ctx context.Context, name string, auth *cri.AuthConfig) {
				t.Helper()
				testkit.Push(t, reg, name+":v1", testkit.App(t, images.Options{Version: name}))
				if _, err := n.PullWith(ctx, reg.Ref(name+":v1"), node.PullOptions{Auth: auth}); err == nil || strings.Contains(err.Error(), "hush") {
					t.Errorf("%s: got %v, want an error without a secret", name, err)
				}
			}
			for name, f := range map[string]func(registry.Request) *registry.Fault{
				"unavailable": registry.FaultIf(registry.Fault{Status: http.StatusServiceUnavailable}, head),
				"cut":         registry.FaultIf(registry.Fault{Abort: true}, head),
				"redirected":  registry.FaultIf(registry.Fault{Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {signed}}}, head),
				"blob":        registry.FaultIf(registry.Fault{Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {signed}}}, blob),
				"challenged":  registry.FaultIf(registry.Fault{Status: http.StatusUnauthorized, Header: http.Header{"WWW-Authenticate": {`Bearer realm="` + signed + `"`}}}, head),
			} {
				reg.SetFault(f)
				pull(ctx, name, testkit.AsAlice())
			}
			reg.SetFault(nil)
			pull(ctx, "denied", &cri.AuthConfig{Username: "mallory", Password: "hush"})

			for name, when := range map[string]func(registry.Request) bool{"cancelled-head": head, "cancelled-blob": blob} {
				reg.SetFault(registry.FaultIf(registry.Fault{Hang: never}, when))
				reg.Reset()
				cctx, cancel := context.WithCancel(ctx)
				go func() {
					_, _ = reg.Wait(cctx, when)
					cancel()
				}()
				pull(cctx, name, testkit.AsAlice())
				cancel()
			}
			testkit.AwaitIdle(t, reg)
			reg.Down()
			if _, err := n.PullWith(ctx, reg.Ref("down:v1"), node.PullOptions{Auth: testkit.AsAlice()}); err == nil {
				t.Error("a pull from a registry that is down succeeded")
			}
			if err := n.Stop(); err != nil {
				t.Fatal(err)
			}

			lines := strings.Split(strings.TrimSuffix(n.Logs(), "\n"), "\n")
			quoted, started := false, false // containerd logs text until it has read its configuration
			for _, line := range lines {
				quoted = quoted || strings.Contains(line, `manifests/v1\": `)
				if strings.Contains(line, "hush") || strings.Contains(line, testkit.AlicePassword) {
					t.Errorf("the log contains a secret:\n%s", line)
				}
				started = started || strings.HasPrefix(line, "{")
				isJSON := started && (n.Options().Mode == node.Plugin || strings.HasPrefix(line, "{"))
				var fields map[string]any
				if isJSON && json.Unmarshal([]byte(line), &fields) != nil || !isJSON && !logfmt.MatchString(line) {
					t.Errorf("a line of the log does not have the format %s:\n%s", format, line)
				}
			}
			if !quoted || started != (format == "json") {
				t.Errorf("%d lines: has the URL of a cut request: %t, want true; has JSON: %t, want %t", len(lines), quoted, started, format == "json")
			}
		})
	}
}
