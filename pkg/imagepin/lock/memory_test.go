package lock_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/internal/heaptest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// fill repeats a text up to 1 MiB, between a beginning and an end.
func fill(begin, text, end string) string {
	return begin + strings.Repeat(text, (1<<20-len(begin)-len(end))/len(text)) + end
}

// TestMemoryOfHostileLocks checks that a lock that expands in memory is refused before it does, and that the error names the limit.
func TestMemoryOfHostileLocks(t *testing.T) {
	const inOneLine = "more than 65536 bytes beside the images that begin on a line of their own"
	item := "- image: a@" + d1.String() + "\n"
	jsonHead := `{"apiVersion":"imgpkg.carvel.dev/v1alpha1","kind":"ImagesLock","images":[`
	tiny := ""
	for n := range 200 {
		tiny += fmt.Sprintf("a%d: ,", n)
	}
	for name, c := range map[string]struct{ text, want string }{
		"images in one line":      {fill(strings.TrimSuffix(head, "\n")+" [", "a,", "]"), inOneLine},
		"a list in an image":      {fill(head+"- [", "a,", "]\n"), "more than 65536 bytes"},
		"lists in an image":       {fill(head+"- ", "- ", "a\n"), "more than 65536 bytes"},
		"lines of an image":       {fill(head+item, "  - a\n", ""), "more than 65536 bytes"},
		"empty images":            {fill(head, "-\n", ""), "images, a lock has at most 20000"},
		"lists in lists":          {fill(head+"- ", "[", "\n"), "more than 65536 bytes"},
		"lists in lists, small":   {head + "- " + strings.Repeat("[", 60_000), "not a lock"},
		"a list, small":           {head + "- [" + strings.Repeat("a,", 30_000) + "]\n", "it is not a mapping"},
		"aliases":                 {head + item + "  annotations: {a: &a " + strings.Repeat("x", 30_000) + ", b: [" + strings.Repeat("*a,", 8_000) + "]}\n", "is not a text"},
		"aliases of annotations":  {head + item + "  annotations: &a {a: b}\n" + strings.Repeat(item+"  annotations: *a\n", 500), "a lock has no aliases"},
		"aliases of aliases":      {head + "- &a {annotations: {a: x}}\n- &b [*a,*a,*a,*a,*a,*a]\n- &c [*b,*b,*b,*b,*b,*b]\n- &d [*c,*c,*c,*c,*c,*c]\n- [*d,*d,*d,*d]\n", "images[0]"},
		"annotations":             {fill(head, item+"  annotations: {"+tiny+"}\n", ""), "more than 80000 annotations of all images"},
		"documents":               {fill("", "---\n", ""), inOneLine},
		"documents after it":      {fill(head+item, "---\n- a\n", ""), "several documents, and the second begins in line 6"},
		"comments":                {fill("", "#\n", head), inOneLine},
		"empty lines":             {fill(head, "\n", ""), inOneLine},
		"fields":                  {fill("", "a: b\n", head), inOneLine},
		"lists in JSON":           {fill(jsonHead, "[],", "[]]}"), "images, a lock has at most 20000"},
		"a list in JSON":          {fill(jsonHead+"[", "0,", "0]]}"), "more than 65536 bytes"},
		"fields in JSON":          {fill("{", `"a":0,`, `"b":0}`), "more than 65536 bytes beside its images"},
		"deep JSON":               {fill("", "[", ""), inOneLine},
		"deep JSON in an object":  {fill(`{"images":`, "[", ""), "not a lock in JSON"},
		"platforms, not a digest": {head + item + "  annotations: {io.imagepin.platforms: '{" + strings.Repeat(`"a":"",`, 9_000) + `"b":""}'}` + "\n", "invalid checksum digest format"},
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(c.text)
			err, grown := heaptest.Of(t, func() error {
				_, err := lock.Parse(data)
				return err
			})
			wantInvalid(t, err, c.want)
			if err != nil && len(err.Error()) > imagepin.MaxErrorText {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if grown.Peak > 16<<20 {
				t.Errorf("%d KiB of a lock need %d MiB", len(data)>>10, grown.Peak>>20)
			}
		})
	}
}

// fleet returns a lock of many images with the manifests of many platforms.
func fleet(t testing.TB, images, platforms int) *lock.Lock {
	all := make([]lock.Image, images)
	for n := range all {
		i := nginx(fmt.Sprintf("nginx:v%d", n), digest.FromString(fmt.Sprint(n)))
		i.Platforms = make(map[string]digest.Digest)
		for p := range platforms {
			i.Platforms[fmt.Sprintf("linux/arch%d", p)] = digest.FromString(fmt.Sprint(n, p))
		}
		i.Annotations = map[string]string{"kbld.carvel.dev/origins": "- resolved:\n    tag: \"1\"\n    url: nginx\n"}
		all[n] = i
	}
	l, err := lock.New(all)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestFleetLock checks that large locks are read, in each form, and what they need: a lock in memory has up to three times the
// size of its text.
func TestFleetLock(t *testing.T) {
	const images = 2_000
	for _, c := range []struct{ images, platforms int }{{images, 16}, {images, 1}} {
		l := fleet(t, c.images, c.platforms)
		text, grown := heaptest.Of(t, func() []byte { return []byte(marshal(t, l)) })
		if size := int64(len(text)); grown.Peak > 4*size+1<<20 {
			t.Errorf("%d images: %d KiB need %d KiB to be written", c.images, size>>10, grown.Peak>>10)
		}
		want, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		inJSON, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		indented := bytes.ReplaceAll(text, []byte("\n"), []byte("\n  "))
		for _, field := range []string{"images:", "kind:"} {
			indented = bytes.Replace(indented, []byte("\n  "+field), []byte("\n"+field), 1)
		}
		indented = append(append([]byte("---\n# comment\n"), bytes.TrimRight(indented, " ")...), "---\n"...)
		for name, data := range map[string][]byte{"YAML": text, "JSON": inJSON, "indented": indented} {
			read, grown := heaptest.Of(t, func() *lock.Lock {
				l, err := lock.Parse(data)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return l
			})
			if got, err := read.Digest(); err != nil || got != want {
				t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
			}
			if size := int64(len(data)); grown.Kept > 3*size+1<<20 || grown.Peak > 4*size+4<<20 {
				t.Errorf("%d images in %s: %d KiB of text: %d KiB are kept, at most %d KiB", c.images, name, size>>10, grown.Kept>>10, grown.Peak>>10)
			}
		}
	}
}

// TestMarshalIsYAML checks that a lock has the bytes that the YAML encoder writes for all images at once.
func TestMarshalIsYAML(t *testing.T) {
	odd := []string{"", "yes", "0o7", "1e3", "null", "~", "2026-01-01", "a: b", "# c", " leading", "trailing ", "line\n", "two\nlines", "\n\n  indented\n x", "'quoted\"", "\u2028\ufeff", "ü\t", strings.Repeat("long text ", 40), "{}", "- a", "*a", "&a", "!a", "%a", "@a", "`a"}
	var all []lock.Image
	type image struct {
		Image       string            `json:"image"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	var images []image
	for n, text := range odd {
		i := nginx(fmt.Sprintf("nginx:v%02d", n), d1)
		i.Annotations = map[string]string{"a": text, "b" + text: "x"}
		all = append(all, i)
		images = append(images, image{i.Ref.String(), map[string]string{"a": text, "b" + text: "x", lock.IDAnnotation: i.ID}})
	}
	for n := range len(all) + 1 {
		want, err := yaml.Marshal(map[string]any{"apiVersion": lock.APIVersion, "kind": lock.Kind, "images": append([]image{}, images[:n]...)})
		if err != nil {
			t.Fatal(err)
		}
		l := newLock(t, all[:n]...)
		if got := marshal(t, l); got != string(want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if n == 0 {
			continue
		}
		again, err := lock.Parse(want)
		if err != nil {
			t.Fatalf("%q: %v", odd[n-1], err)
		}
		if got := marshal(t, again); got != string(want) {
			t.Errorf("got\n%s\nand then\n%s", want, got)
		}
	}
}

// TestLargeImage checks that a lock has no image that cannot be read again.
func TestLargeImage(t *testing.T) {
	for size, fits := range map[int]bool{1_000: true, lock.MaxImageSize / 2: true, lock.MaxImageSize: false} {
		i := nginx("nginx:1", d1)
		i.Annotations = map[string]string{"a": strings.Repeat("x", size)}
		l, err := lock.New([]lock.Image{i, nginx("nginx:2", d2)})
		if !fits {
			wantInvalid(t, err, "an image of a lock has at most 65536")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Parse([]byte(marshal(t, l))); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// BenchmarkParse reads the lock of a fleet.
func BenchmarkParse(b *testing.B) {
	text, err := fleet(b, 2_000, 16).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := lock.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDigest writes the lock of a fleet.
func BenchmarkDigest(b *testing.B) {
	l := fleet(b, 2_000, 16)
	for b.Loop() {
		if _, err := l.Digest(); err != nil {
			b.Fatal(err)
		}
	}
}
