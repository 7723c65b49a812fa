package packages

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// kubeletStandIn is a unit with the name of kubelet's that does not run kubelet, because docs/install.md only restarts
// it. The tests in integration/kubelet run kubelet.
const kubeletStandIn = "[Service]\nExecStart=/bin/sleep infinity\n"

// TestInstallDocs runs every line with a "$" of two chapters of docs/install.md in order, on one node for each chapter.
// The output must be that of the document. If the document has none, the output is not checked.
func TestInstallDocs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, chapter := range []string{"Beside containerd", "In containerd"} {
		t.Run(chapter, func(t *testing.T) {
			t.Parallel()
			steps := stepsOf(chapterOf(t, string(text), chapter))
			if len(steps) < 5 {
				t.Fatalf("got %d commands, want at least 5: %v", len(steps), steps)
			}
			n := newStockNode(t)
			n.push("team/app:v1")
			n.WriteFile("/etc/systemd/system/kubelet.service", kubeletStandIn, 0o644)
			for _, name := range []string{"imagepin", "imagepin-containerd"} {
				deb := packaged(t, name+"_*_{arch}.deb")
				n.CopyFile("/root/"+filepath.Base(deb), deb, 0o644)
			}
			here := strings.NewReplacer("registry.example.com", n.reg.Host(), "_amd64.deb", "_"+runtime.GOARCH+".deb")
			for _, s := range steps {
				got := n.Run("{ " + here.Replace(s.command) + "\n} 2>/tmp/stderr || { cat /tmp/stderr; exit 1; }")
				t.Logf("$ %s\n%s", s.command, got)
				if s.output != "" && plain(got) != plain(here.Replace(s.output)) {
					t.Errorf("$ %s\ngot\n%s\nwant, as in the document\n%s", s.command, got, s.output)
				}
			}
			if left, err := n.Try(n.ctx, "command -v imagepin"); err == nil {
				t.Errorf("in the end %s is still installed", left)
			}
		})
	}
}

func chapterOf(t *testing.T, text, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n## "+name+"\n")
	if !ok {
		t.Fatalf("there is no chapter %q", name)
	}
	chapter, _, _ := strings.Cut(rest, "\n## ")
	return chapter
}

// step is a command in a document, with its output.
type step struct{ command, output string }

var console = regexp.MustCompile("(?s)```console\n(.*?)```")

func stepsOf(text string) []step {
	var steps []step
	for _, block := range console.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				steps = append(steps, step{command: strings.TrimSpace(command)})
			} else if len(steps) > 0 {
				steps[len(steps)-1].output += line
			}
		}
	}
	return steps
}

var (
	spaces = regexp.MustCompile(`[ \t]+`)
	ago    = regexp.MustCompile(`(Less than a second|\d+ seconds?) ago`)
)

// plain normalizes the width of columns and relative times.
func plain(s string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(ago.ReplaceAllString(s, "- ago"), " "))
}

// TestNodeScript runs node.sh, the script of the DaemonSets in contrib/kubernetes, with all of its arguments.
func TestNodeScript(t *testing.T) {
	t.Parallel()
	n := newStockNode(t)
	before := n.files()
	n.CopyFile("/tmp/node.sh", filepath.Join(repository, "contrib", "kubernetes", "node.sh"), 0o755)
	for _, name := range []string{"imagepin", "imagepin-containerd"} {
		deb := packaged(t, name+"_*_{arch}.deb")
		n.CopyFile("/tmp/packages/"+filepath.Base(deb), deb, 0o644)
	}
	const script = "HOST=/ PACKAGES=/tmp/packages /tmp/node.sh "
	wantRemoved := func() {
		t.Helper()
		if diff := difference(before, n.files()); diff != nil {
			t.Errorf("after the removal:\n%s", strings.Join(diff, "\n"))
		}
	}
	n.Run(script + "install standalone")
	n.Run("imagepin --address " + imagepinSocket + " images")
	n.Run(script + "remove")
	wantRemoved()
	n.Run(script + "install containerd")
	n.Run("imagepin images")
	n.Run(script + "remove")
	wantRemoved()
	if out, err := n.Try(n.ctx, script+"install somehow"); err == nil {
		t.Errorf("node.sh accepts an unknown argument: %s", out)
	}
}

// TestDaemonSets checks that the manifests have no unknown fields, and that their arguments are those of node.sh.
func TestDaemonSets(t *testing.T) {
	for file, args := range map[string]string{"install.yaml": "install standalone", "remove.yaml": "remove"} {
		text, err := os.ReadFile(filepath.Join(repository, "contrib", "kubernetes", file))
		if err != nil {
			t.Fatal(err)
		}
		var ds appsv1.DaemonSet
		if err := yaml.UnmarshalStrict(text, &ds); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		pod := ds.Spec.Template
		if got := strings.Join(pod.Spec.InitContainers[0].Args, " "); got != args || !pod.Spec.HostPID {
			t.Errorf("%s: got arguments %q and hostPID %t", file, got, pod.Spec.HostPID)
		}
		for k, v := range ds.Spec.Selector.MatchLabels {
			if pod.Labels[k] != v {
				t.Errorf("%s selects %s=%s, but its pods have labels %q", file, k, v, pod.Labels)
			}
		}
	}
}
