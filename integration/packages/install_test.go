package packages

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// kubeletStandIn is a unit with the name of kubelet's that does not run kubelet, because docs/install.md only restarts
// it. The tests in integration/kubelet run kubelet.
const kubeletStandIn = "[Service]\nExecStart=/bin/sleep infinity\n"

// TestInstallDocs runs every line with a "$" of two chapters of docs/install.md in order, on one node for each chapter.
// The output must be that of the document. If the document has none, the output is not checked.
func TestInstallDocs(t *testing.T) {
	t.Parallel()
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
	ago    = regexp.MustCompile(`(\d+[dhms]){1,2} ago`)
)

// plain normalizes the width of columns and relative times.
func plain(s string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(ago.ReplaceAllString(s, "- ago"), " "))
}
