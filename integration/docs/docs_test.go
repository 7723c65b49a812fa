package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// repository is the path of the repository from the directory of this package.
const repository = "../.."

// others are the documents whose commands another package runs, with its directory.
var others = map[string]string{
	"docs/install.md":    "integration/packages",
	"docs/kubectl.md":    "integration/kubelet/kubectl",
	"docs/kubernetes.md": "integration/kubelet",
}

// TestOthers checks that the packages of others read their documents.
func TestOthers(t *testing.T) {
	t.Parallel()
	for name, dir := range others {
		tests, err := filepath.Glob(filepath.Join(repository, dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		reads := regexp.MustCompile(`(Read|ReadFile)\(.*` + regexp.QuoteMeta(filepath.Base(name)) + `"`)
		if !slices.ContainsFunc(tests, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && reads.Match(b)
		}) {
			t.Errorf("no test in %s reads %s", dir, name)
		}
	}
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

// documents returns the paths of the documents with commands that this package runs, and of those that show none.
func documents(t *testing.T) []string {
	t.Helper()
	names := []string{"README.md"}
	for _, dir := range []string{"docs", "contrib"} {
		err := fs.WalkDir(os.DirFS(repository), dir, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".md" && others[path] == "" {
				names = append(names, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}
