package docs

import (
	"path/filepath"
	"strings"
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
	"docs/kubectl.md":    "integration/kubelet/kubectl runs them",
	"docs/kubernetes.md": "integration/kubelet runs them",
}

// TestDocs runs every session of the documents, and fails if a document shows another output. It also fails for a
// command that no session runs.
func TestDocs(t *testing.T) {
	for _, name := range documents(t) {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			d, err := transcript.Read(filepath.Join(repository, name))
			if err != nil {
				t.Fatal(err)
			}
			check := d.Check()
			t.Run("sessions", func(t *testing.T) {
				for _, items := range d.Sessions() {
					t.Run(items[0].Text, func(t *testing.T) {
						t.Parallel()
						run(t, items, check.Output)
					})
				}
			})
			if err := check.Save(); err != nil {
				t.Error(err)
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
