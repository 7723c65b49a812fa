// Package links checks the links between the documents of the repository.
package links

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const repository = "../../.."

var (
	fence   = regexp.MustCompile("^\\s*```")
	heading = regexp.MustCompile(`^#{1,6} +(.+)$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	code    = regexp.MustCompile("`[^`]*`")
	// dropped are the characters that GitHub leaves out of the anchor of a heading.
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// page is what other pages can link to, and what it links to.
type page struct {
	anchors map[string]bool
	links   []string
}

func read(t *testing.T, path string) page {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(string(b))
}

func parse(text string) page {
	p := page{anchors: map[string]bool{}}
	fenced := false
	for line := range strings.Lines(text) {
		if fence.MatchString(line) {
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		if m := heading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			p.anchors[anchor(m[1])] = true
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(line, "code"), -1) {
			p.links = append(p.links, m[1])
		}
	}
	return p
}

// anchor returns the anchor that GitHub gives to a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// TestLinks checks that each relative link of a document names a file, and its fragment a heading of that file.
func TestLinks(t *testing.T) {
	documents := 0
	err := filepath.WalkDir(repository, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); path != repository && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		documents++
		for _, l := range read(t, path).links {
			if err := check(t, path, l); err != "" {
				t.Errorf("%s: link to %s: %s", strings.TrimPrefix(path, repository+"/"), l, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if documents < 20 {
		t.Errorf("found only %d documents", documents)
	}
}

// check returns what is wrong with a link, or "".
func check(t *testing.T, from, link string) string {
	t.Helper()
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return ""
	}
	file, fragment, hasFragment := strings.Cut(link, "#")
	target := from
	if file != "" {
		target = filepath.Join(filepath.Dir(from), file)
	}
	if _, err := os.Stat(target); err != nil {
		return "there is no such file"
	}
	if hasFragment && filepath.Ext(target) == ".md" && !read(t, target).anchors[fragment] {
		return "the document has no such heading"
	}
	return ""
}

func TestParse(t *testing.T) {
	p := parse("# One `two`: three, 4 (*five*)\n```\n# no\n[no](no.md)\n```\nsee [a](b.md#c), ![d](e.svg) and `[no](no.md)`\n")
	if !p.anchors["one-two-three-4-five"] || len(p.anchors) != 1 {
		t.Errorf("anchors: %v", p.anchors)
	}
	if got := strings.Join(p.links, " "); got != "b.md#c e.svg" {
		t.Errorf("links: %s", got)
	}
}
