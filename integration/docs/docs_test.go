package docs

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// repository is the path of the repository from the directory of this package.
const repository = "../.."

// others are the documents whose commands this package does not run, with the reason.
var others = map[string]string{
	"README.md":          "not run yet",
	"docs/install.md":    "integration/packages runs them",
	"docs/kubectl.md":    "they need an API server",
	"docs/kubernetes.md": "they need a kubelet",
}

// TestDocs runs every session of the documents, and fails if a document shows another output. It also fails for a
// command that no session runs.
func TestDocs(t *testing.T) {
	update := os.Getenv("IMAGEPIN_UPDATE_DOCS") != ""
	for _, name := range documents(t) {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d, err := transcript.Read(filepath.Join(repository, name))
			if err != nil {
				t.Fatal(err)
			}
			outputs := differences{}
			t.Run("sessions", func(t *testing.T) {
				for _, items := range d.Sessions() {
					t.Run(items[0].Text, func(t *testing.T) {
						t.Parallel()
						run(t, items, outputs.in(t, name, update))
					})
				}
			})
			if update && len(outputs.byLine) > 0 {
				if err := d.Update(outputs.byLine); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// documents returns the paths of the documents with commands that this package runs.
func documents(t *testing.T) []string {
	t.Helper()
	var names []string
	found, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(found) == 0 {
		t.Fatalf("there are no documents: %v", err)
	}
	for _, path := range found {
		name := "docs/" + filepath.Base(path)
		if others[name] == "" {
			names = append(names, name)
		}
	}
	return names
}

// differences are outputs that are not those of a document, by the line of their item.
type differences struct {
	mu     sync.Mutex
	byLine map[int]string
}

// in returns a function that handles the output of an item: it reports a difference, or keeps it for an update.
func (d *differences) in(t *testing.T, name string, update bool) func(transcript.Item, string) {
	return func(i transcript.Item, got string) {
		if transcript.Equal(i.Want, got) {
			return
		}
		if !update {
			t.Errorf("%s:%d: %s\ngot\n%s\nwant, as in the document\n%s", name, i.Line, i.Text, transcript.Shorten(got), i.Want)
			return
		}
		if strings.Contains(i.Want, "[...]") {
			t.Errorf("%s:%d: update this output by hand, because of its [...]:\n%s", name, i.Line, transcript.Shorten(got))
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.byLine == nil {
			d.byLine = map[int]string{}
		}
		d.byLine[i.Line] = got
	}
}
