package yamldoc

import (
	"strings"
	"testing"
)

func TestSingle(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"a: 1\n":                            "",
		"---\na: 1\n":                       "",
		"--- {a: 1}\n":                      "",
		"# comment\n---\na: 1\n":            "",
		"a: 1\n---\n":                       "",
		"a: 1\n...\n":                       "",
		"a: 1\n---\n# comment\n---\n":       "",
		"a: |\n  ---\n  b\n":                "",
		"a: a---b\n":                        "",
		"{a: 1}":                            "",
		"{\n\t\"a\": 1\n}\n":                "",
		"{\"a\": \"---\"}":                  "",
		"a: 1\n---\nb: 2\n":                 "line 3",
		"a: 1\n--- {b: 2}\n":                "line 2",
		"---\na: 1\n---\nb: 2\n":            "line 4",
		"---\n# nothing\n---\nb: 2\n":       "line 4",
		"a: 1\r\n---\r\nb: 2\r\n":           "line 3",
		"a: 1\r---\rb: 2\r":                 "line 3",
		"a: 1\n...\n---\nb: 2\n":            "line 4",
		"a: 1\n---\n# comment\n---\nb: 2\n": "line 5",
		"\ufeffa: 1\n---\nb: 2\n":           "line 3",
		"{\"a\": 1}\n{\"b\": 2}\n":          "document 1",
		"# comment\n{a: 1}\n{b: 2}\n":       "document 1",
		"{\"a\": 1}\n---\n{\"b\": 2}\n":     "line 3",
		"a: 1\n...\nb: 2\n":                 "document 1",
		"a: 1\n---\n\tb\n":                  "line 3",
		"\ufeff{a: 1}\n{b: 2}\n":            "document 1",
		" a: 1\nb: 2\n":                     "document 1",
		"\n  a: 1\n b: 2\n":                 "document 1",
		"---\n\n  a: 1\n- b\n":              "document 1",
		"\ufeff  a: 1\n  b: 2\n":            "",
		"--- a\n":                           "",
	} {
		err := Single([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
