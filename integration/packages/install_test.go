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

// kubeletStandIn is a unit of the name of kubelet's that runs no kubelet: what docs/install.md does to kubelet is to restart
// it. Real ones are in integration/kubelet.
const kubeletStandIn = "[Service]\nExecStart=/bin/sleep infinity\n"

// TestInstallDocs runs docs/install.md: of each of its two chapters every line with a "$", in its order, on a node of its
// own. What is printed has to be what stands there; where nothing stands, anything may be printed.
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
				t.Fatalf("only %d commands: %v", len(steps), steps)
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
					t.Errorf("$ %s\nprints\n%s\nand in the document it is\n%s", s.command, got, s.output)
				}
			}
			if left, err := n.Try(n.ctx, "command -v imagepin"); err == nil {
				t.Errorf("in the end there is still %s", left)
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

// step is a command and what it prints, as it stands in a document.
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

// plain leaves the width of columns out of account, and how long ago something was.
func plain(s string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(ago.ReplaceAllString(s, "- ago"), " "))
}

// TestNodeScript runs what the DaemonSets of contrib/kubernetes run on a node, in all its ways.
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
	gone := func() {
		t.Helper()
		if diff := difference(before, n.files()); diff != nil {
			t.Errorf("after the removal:\n%s", strings.Join(diff, "\n"))
		}
	}
	n.Run(script + "install standalone")
	n.Run("imagepin --address " + imagepinSocket + " images")
	n.Run(script + "remove")
	gone()
	n.Run(script + "install containerd")
	n.Run("imagepin images")
	n.Run(script + "remove")
	gone()
	if out, err := n.Try(n.ctx, script+"install somehow"); err == nil {
		t.Errorf("it installs in a way that does not exist: %s", out)
	}
}

// TestDaemonSets: the manifests have only fields that exist, and their arguments are node.sh's.
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
			t.Errorf("%s runs %q, in the node's processes %t", file, got, pod.Spec.HostPID)
		}
		for k, v := range ds.Spec.Selector.MatchLabels {
			if pod.Labels[k] != v {
				t.Errorf("%s selects %s=%s, and its pods have %q", file, k, v, pod.Labels)
			}
		}
	}
}
