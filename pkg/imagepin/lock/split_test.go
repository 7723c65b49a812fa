package lock_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// large makes a lock of more than lock.MaxImageSize of a small one: it replaces "PAD" by a comment in the images.
func large(text string) []byte {
	return []byte(strings.Replace(text, "PAD", strings.Repeat("x", lock.MaxImageSize-1_000), 1))
}

// TestLargeIsSmall checks that a large lock is read as a small one.
func TestLargeIsSmall(t *testing.T) {
	const fields = "apiVersion: " + lock.APIVersion + "\nkind: " + lock.Kind + "\n"
	const jsonFields = `{"apiVersion":"` + lock.APIVersion + `","kind":"` + lock.Kind + `",`
	item, more := "- image: a@"+d1.String()+"\n# PAD\n", "- image: b@"+d1.String()+"\n  annotations: {a: "+strings.Repeat("x", 2_000)+"}\n"
	images := item + more
	indent := func(by string) string {
		return by + strings.ReplaceAll(strings.TrimSpace(images), "\n", "\n"+by) + "\n"
	}
	block := "  annotations:\n    a: |\n      - image: x\n\n      images:\n      ---\n    b: \"x\n\n      - image: x\n      ...\n     # x\"\n"
	for name, c := range map[string]struct {
		text string
		want string // of the error, empty if it is accepted
	}{
		"plain":               {fields + "images:\n" + images, ""},
		"indented":            {fields + "images:\n" + indent("  "), ""},
		"images first":        {"images: # c\n\n" + indent("    ") + "\n" + fields, ""},
		"a directive":         {"# c\n%YAML 1.1\n---\n" + fields + "images:\n" + images, ""},
		"quoted fields":       {fields + "\"images\":\n" + images, ""},
		"single quotes":       {fields + "'images':\n" + images, ""},
		"CRLF":                {strings.ReplaceAll("\ufeff---\n"+fields+"images:\n"+images+"...\n", "\n", "\r\n"), ""},
		"texts like images":   {fields + "images:\n" + images + "- image: c@" + d1.String() + "\n" + block + "- image: d@" + d1.String() + "\n", ""},
		"another document":    {fields + "images:\n" + images + "---\na: b\n", "several documents"},
		"after CR":            {fields + "images:\n" + images + "\r---\r- a\n", "document"},
		"after CR in comment": {fields + "images:\n" + images + "# c\r---\ra: b\n", "document"},
		"after a separator":   {fields + "images:\n" + images + "\u2028---\u2028- a\n", "document"},
		"after the head":      {"# c\n{apiVersion: " + lock.APIVersion + ", kind: " + lock.Kind + "}\nimages:\n" + images, "expected <document start>"},
		"after a marker":      {"--- {apiVersion: " + lock.APIVersion + ", kind: " + lock.Kind + "}\nimages:\n" + images, "expected <document start>"},
		"null after images":   {fields + "images:\n" + indent("    ") + "  null\n", "did not find expected"},
		"a list after images": {fields + "images:\n" + indent("    ") + "  []\n", "did not find expected"},
		"two fields":          {fields + "images:\n" + images + "images:\n" + images, "is there twice"},
		"a list in a list":    {jsonFields + `"images":[[{"image":"a@` + d1.String() + `"}]` + strings.Repeat(" ", 2_000) + `,"PAD"]}`, "it is not a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			small, smallErr := lock.Parse([]byte(c.text))
			got, err := lock.Parse(large(c.text))
			if c.want == "" {
				if err != nil || smallErr != nil || !reflect.DeepEqual(got, small) {
					t.Errorf("got %v, %v, want %v, %v", got, err, small, smallErr)
				}
				return
			}
			wantInvalid(t, smallErr, c.want)
			wantInvalid(t, err, c.want)
		})
	}
}

// TestUnquoted checks the texts of annotations without quotes.
func TestUnquoted(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", "-1": "-1", "0x1F": "31", "1.5": "1.5", "true": "true", "yes": "true", "Off": "false", "null": "", "~": "",
		"2026-01-01": "2026-01-01", "---": "---", "'42'": "42", "'yes'": "yes", "a": "a", "99999999999999999999999": "1e+23",
	} {
		l, err := lock.Parse([]byte(head + "- image: a@" + d1.String() + "\n  annotations:\n    value: " + text + "\n    x: y\n"))
		if err != nil || l.Images[0].Annotations["value"] != want {
			t.Errorf("%s: got %v, %v, want %q", text, l, err, want)
		}
		if want == "" || text == "---" {
			continue
		}
		l, err = lock.Parse([]byte(head + "- image: a@" + d1.String() + "\n  annotations: {" + text + ": x}\n"))
		if err != nil || l.Images[0].Annotations[want] != "x" {
			t.Errorf("name %s: got %v, %v, want %q", text, l, err, want)
		}
	}
	for text, want := range map[string]string{
		"null: x": "a name is null", "~: x": "a name is null", "1: x, 0x1: y": `"1" is there twice`, "a: [b]": "it is not a text", "<<: {a: b}": "is not a text",
	} {
		_, err := lock.Parse([]byte(head + "- image: a@" + d1.String() + "\n  annotations: {" + text + "}\n"))
		wantInvalid(t, err, want)
	}
}
