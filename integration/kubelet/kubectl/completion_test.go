package kubectl

import (
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	deployment(t, ns, "web", image, 1)
	deployment(t, ns, "worker", image, 0)
	pod := run(t, ns, 1, digestA)[0]
	pin := api.claim(t, pod, image, digestA).Name
	for _, tc := range []struct {
		words string
		want  []string
	}{
		{"explain web-", []string{pod.Name}},
		{"explain deploy/w", []string{"deploy/web", "deploy/worker"}},
		{"explain --resol", []string{"--resolve\tLook up the current digests of tags at their registries."}},
		{"explain --insecure-r", []string{"--insecure-registry\tUse HTTP for registries that do not serve HTTPS."}},
		{"get " + pin[:5], []string{pin}},
		{"rm " + pin[:5], []string{pin}},
		{"refresh dep", []string{"deployment/"}},
		{"refresh --new-revision=", []string{"node", "resolve"}},
		{"set dae", []string{"daemonset/"}},
		{"set things/", nil},
		{"seed images.lock dep", []string{"deployment/"}},
		{"seed images.lock deployment/web deployment/wo", []string{"deployment/worker"}},
	} {
		r, err := kubectl.run(testkit.Context(t), append([]string{"__complete", "--namespace=" + ns}, strings.Fields(tc.words)...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(r.out, "\n")
		if got := lines[:slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, ":") })]; !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.words, got, tc.want)
		}
	}
}
