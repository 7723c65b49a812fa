package transcript_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/docs/transcript"
)

const page = "# Page\n\n" +
	"<!-- session: node -->\n<!-- step: push app v1 -->\n\n" +
	"```console\n$ show a\nfirst 2s ago\n[...]\nlast sha256:0123456789ab…\n\n$ quiet\n```\n\n" +
	"<!-- not run: it needs a cluster -->\n```console\n$ kubectl get pods\n```\n\n" +
	"1. In a list:\n\n   <!-- output: error app -->\n   ```\n   it failed\n   here\n   ```\n"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	d, err := transcript.Read(write(t, page))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range d.Items {
		got = append(got, string(i.Kind)+" "+i.Text+": "+strings.ReplaceAll(i.Want, "\n", "|"))
	}
	want := []string{
		"session node: ", "step push app v1: ", "command show a: first 2s ago|[...]|last sha256:0123456789ab…||",
		"command quiet: ", "not run it needs a cluster: ", "output error app: it failed|here|",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got items\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := d.Sessions(); len(s) != 1 || len(s[0]) != len(want) {
		t.Errorf("got sessions %v", s)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no session":          "```console\n$ imagepin images\n```\n",
		"an indented block":   "<!-- session: node -->\n\n    $ imagepin images\n",
		"no command":          "<!-- session: node -->\n```console\nREFERENCE\n```\n",
		"no block":            "<!-- session: node -->\n<!-- output: error -->\n",
		"a directive between": "<!-- session: node -->\n<!-- not run: x -->\n<!-- step: y -->\n```console\n$ a\n```\n",
	} {
		if _, err := transcript.Read(write(t, text)); err == nil {
			t.Errorf("%s: accepted\n%s", name, text)
		}
	}
}

func TestEqual(t *testing.T) {
	digest := "sha256:0123456789ab" + strings.Repeat("c", 52)
	for _, c := range []struct {
		want, got string
		equal     bool
	}{
		{"a  b\n", "a      b", true},
		{"made 0s ago", "made 2m5s ago", true},
		{"at 2026-11-21T12:31:33Z", "at 2027-01-01T00:00:00.123Z", true},
		{"AGE 59s", "AGE 2m5s", true},
		{"in 1.5s (150ms including waiting)", "in 1m2.5s (3s including waiting)", true},
		{"5 files", "6 files", false},
		{"from 127.0.0.1:5000", "from 127.0.0.1:33999", true},
		{`{"seconds": 12, "size": 3}`, `{"seconds": 13, "size": 3}`, true},
		{`{"seconds": 12, "size": 3}`, `{"seconds": 12, "size": 4}`, false},
		{"to sha256:0123456789ab…", "to " + digest, true},
		{"to sha256:0123456789ac…", "to " + digest, false},
		{"first\n[...]\nlast", "first\nx\ny\nlast", true},
		{"first\n[...]\nlast", "first\nlast", true},
		{"first\n[...]\nlast", "first\nx", false},
		{"", "an error", false},
		{"2 images", "3 images", false},
	} {
		if got := transcript.Equal(c.want, c.got); got != c.equal {
			t.Errorf("%q and %q: equal is %t", c.want, c.got, got)
		}
	}
}

// A session replaces texts in both directions, and stops at the first output that is not that of the document.
func TestPlay(t *testing.T) {
	items := []transcript.Item{
		{Kind: transcript.Session, Text: "node"}, {Kind: transcript.Command, Text: "echo /shown; exit 3", Want: "/shown"},
		{Kind: transcript.Step, Text: "digest now"}, {Kind: transcript.Output, Text: "where", Want: "at /shown"},
		{Kind: transcript.Command, Text: "echo sha256:0123456789ab…", Want: "sha256:0123456789ab…"},
		{Kind: transcript.Command, Text: "echo other", Want: "same"}, {Kind: transcript.Command, Text: "echo never", Want: "never"},
	}
	var s transcript.Shell
	s.Replace("/shown", "/real")
	var ran []string
	command := func(text string) (string, error) {
		out, err := s.Run(t.Context(), text)
		ran = append(ran, out)
		return out, err
	}
	step := func(name string, args []string) (string, error) {
		if name == "digest" && strings.Join(args, " ") == "now" {
			return "sha256:0123456789ab" + strings.Repeat("c", 52), nil
		}
		return "at /real", nil
	}
	page, err := transcript.Read(write(t, page))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Play(items, command, step, page.Check().Output)
	if err == nil || !strings.Contains(err.Error(), "echo other") {
		t.Errorf("got error %v, want the difference of the command echo other", err)
	}
	want := []string{"/real\n", "sha256:0123456789ab" + strings.Repeat("c", 52) + "\n", "other\n"}
	if strings.Join(ran, "") != strings.Join(want, "") {
		t.Errorf("got outputs %q, want %q", ran, want)
	}
	if _, err := s.Must(t.Context(), "exit 3"); err == nil {
		t.Error("an exit code is no error")
	}
}
