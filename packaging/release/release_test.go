package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/imagepin/imagepin/packaging/internal/content"
)

// git runs git in a directory.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func head(t *testing.T, root string) string { return git(t, root, "rev-parse", "HEAD") }

// built returns a repository and the output of its build.
func built(t *testing.T) (root, dist string) {
	t.Helper()
	root, dist = t.TempDir(), t.TempDir()
	git(t, root, "init", "-q")
	git(t, root, "commit", "-q", "--allow-empty", "-m", "first")
	for _, name := range []string{"imagepin_1.2.3_amd64.deb", "SHA256SUMS", "plugin/imagepin.yaml", "image/imagepin.tar", "repository/apt/other"} {
		file := filepath.Join(dist, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, dist
}

// TestRelease makes a release twice, and reads its checksums and its provenance.
func TestRelease(t *testing.T) {
	root, dist := built(t)
	var sums, text []byte
	for range 2 {
		r := &release{version: "v1.2.3", built: "1.2.3", commit: head(t, root), builder: localBuilder, root: root}
		if err := r.run([]string{dist}, false); err != nil {
			t.Fatal(err)
		}
		before, beforeText := sums, text
		var err error
		if sums, err = os.ReadFile(filepath.Join(dist, "release", "SHA256SUMS")); err != nil {
			t.Fatal(err)
		}
		if text, err = os.ReadFile(filepath.Join(dist, "release", "imagepin-1.2.3.provenance.json")); err != nil {
			t.Fatal(err)
		}
		if before != nil && (string(before) != string(sums) || string(beforeText) != string(text)) {
			t.Errorf("the second release differs:\n%s%s\n%s%s", before, beforeText, sums, text)
		}
	}
	want := map[string]string{}
	var wantSums strings.Builder
	for _, path := range []string{"image/imagepin.tar", "plugin/imagepin.yaml", "imagepin_1.2.3_amd64.deb"} {
		name, sum := filepath.Base(path), content.Digest([]byte("content of "+path))
		want[name] = sum
		fmt.Fprintf(&wantSums, "%s  %s\n", sum, name)
		if got, err := os.ReadFile(filepath.Join(dist, "release", name)); err != nil || string(got) != "content of "+path {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if string(sums) != wantSums.String() {
		t.Errorf("got SHA256SUMS\n%s\nwant\n%s", sums, wantSums.String())
	}
	checkProvenance(t, text, want, head(t, root))
}

// checkProvenance reads a statement with the library of in-toto, which rejects unknown fields.
func checkProvenance(t *testing.T, text []byte, want map[string]string, commit string) {
	t.Helper()
	var s intoto.Statement
	if err := protojson.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.GetPredicateType() != "https://slsa.dev/provenance/v1" || len(s.GetSubject()) != len(want) {
		t.Errorf("got predicate %s and %d subjects, want %d", s.GetPredicateType(), len(s.GetSubject()), len(want))
	}
	for _, subject := range s.GetSubject() {
		if got := subject.GetDigest()["sha256"]; got != want[subject.GetName()] {
			t.Errorf("%s: got %s, want %s", subject.GetName(), got, want[subject.GetName()])
		}
	}
	raw, err := protojson.Marshal(s.GetPredicate())
	if err != nil {
		t.Fatal(err)
	}
	var p slsa.Provenance
	if err := protojson.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if got := p.GetBuildDefinition().GetResolvedDependencies()[0].GetDigest()["gitCommit"]; got != commit {
		t.Errorf("got commit %s, want %s", got, commit)
	}
}

// TestRefused makes releases with a wrong version, with changes in the working tree, with another commit,
// and with two files of one name.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, version, built string
		change               func(t *testing.T, root, dist string)
		want                 string
	}{
		{name: "no version", built: "1.2.3", want: `VERSION "" is not a semantic version`},
		{name: "no v", version: "1.2.3", built: "1.2.3", want: `VERSION "1.2.3" is not a semantic version`},
		{name: "two numbers", version: "v1.2", built: "1.2", want: `VERSION "v1.2" is not a semantic version`},
		{name: "metadata", version: "v1.2.3+x", built: "1.2.3+x", want: "is not a semantic version"},
		{name: "another version", version: "v1.2.4", built: "1.2.3", want: "VERSION is v1.2.4, but version/version.go has 1.2.3"},
		{name: "changes", version: "v1.2.3", built: "1.2.3", want: "?? new", change: func(t *testing.T, root, _ string) {
			if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "another commit", version: "v1.2.3", built: "1.2.3", want: "but the build started with commit", change: func(t *testing.T, root, _ string) {
			git(t, root, "commit", "-q", "--allow-empty", "-m", "second")
		}},
		{name: "one name twice", version: "v1.2.3", built: "1.2.3", want: "file exists", change: func(t *testing.T, _, dist string) {
			if err := os.WriteFile(filepath.Join(dist, "imagepin.tar"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, dist := built(t)
			r := &release{version: c.version, built: c.built, commit: head(t, root), builder: localBuilder, root: root}
			if c.change != nil {
				c.change(t, root, dist)
			}
			if err := r.run([]string{dist}, false); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
