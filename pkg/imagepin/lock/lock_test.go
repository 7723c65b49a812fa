package lock_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

var d1, d2 = digest.FromString("1"), digest.FromString("2")

func image(id, ref string) lock.Image {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		panic(err)
	}
	return lock.Image{ID: id, Ref: named.(reference.Canonical)}
}

func nginx(id string, d digest.Digest) lock.Image { return image(id, "nginx@"+d.String()) }

func newLock(t *testing.T, images ...lock.Image) *lock.Lock {
	t.Helper()
	l, err := lock.New(images)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func marshal(t *testing.T, l *lock.Lock) string {
	t.Helper()
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func wantInvalid(t *testing.T, err error, text string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != imagepin.InvalidLock || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want InvalidLock with %q", err, text)
	}
}

func TestMarshal(t *testing.T) {
	redis := image("", "registry.example/redis@"+d2.String())
	redis.Annotations = map[string]string{"team": "shop"}
	web := nginx("nginx:1.29", d1)
	web.Platforms = map[string]digest.Digest{"linux/arm64": d2, "linux/amd64": d1}
	got := marshal(t, newLock(t, web, redis, web))
	want := `apiVersion: imgpkg.carvel.dev/v1alpha1
images:
- annotations:
    team: shop
  image: registry.example/redis@` + d2.String() + `
- annotations:
    io.imagepin.platforms: '{"linux/amd64":"` + d1.String() + `","linux/arm64":"` + d2.String() + `"}'
    kbld.carvel.dev/id: nginx:1.29
  image: docker.io/library/nginx@` + d1.String() + `
kind: ImagesLock
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	parsed, err := lock.Parse([]byte(got))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(parsed, newLock(t, redis, web)) {
		t.Errorf("got %+v", parsed)
	}
}

// TestDigest checks that the order of the images has no effect on the digest, and that each change has.
func TestDigest(t *testing.T) {
	a, b := nginx("nginx:1", d1), image("redis", "redis@"+d2.String())
	sum := func(images ...lock.Image) digest.Digest {
		t.Helper()
		d, err := newLock(t, images...).Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := sum(a, b)
	if got := sum(b, a); got != first {
		t.Errorf("got %s and %s", first, got)
	}
	moved, annotated := nginx("nginx:1", d2), a
	annotated.Annotations = map[string]string{"a": "b"}
	for _, other := range [][]lock.Image{{a}, {moved, b}, {annotated, b}} {
		if sum(other...) == first {
			t.Errorf("%+v has the same digest", other)
		}
	}
}

func TestNewDoesNotChangeItsInput(t *testing.T) {
	images := []lock.Image{nginx("nginx:2", d1), nginx("nginx:1", d1), nginx("nginx:1", d1)}
	before := slices.Clone(images)
	newLock(t, images...)
	if !reflect.DeepEqual(images, before) {
		t.Errorf("got %+v", images)
	}
}

// TestRelocated checks that a lock is accepted whose images imgpkg has copied to another repository.
func TestRelocated(t *testing.T) {
	l := newLock(t, image("nginx:1", "copies.example/nginx@"+d1.String()))
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := lock.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	i := again.Images[0]
	if tag, ok := i.Tag(); !ok || tag.String() != "docker.io/library/nginx:1" || i.Ref.String() != "copies.example/nginx@"+d1.String() {
		t.Errorf("got %+v", i)
	}
}

func TestNewRejects(t *testing.T) {
	_, err := lock.New([]lock.Image{nginx("nginx:1", d1), nginx("docker.io/library/nginx:1", d2)})
	wantInvalid(t, err, "docker.io/library/nginx:1 has two digests: ")
	_, err = lock.New(make([]lock.Image, lock.MaxImages+1))
	wantInvalid(t, err, "20001 images, a lock has at most 20000")
}

func TestTag(t *testing.T) {
	for id, want := range map[string]string{
		"nginx": "docker.io/library/nginx:latest", "nginx:1": "docker.io/library/nginx:1", "": "", "nginx@" + d1.String(): "",
		"nginx:1@" + d1.String(): "",
	} {
		tag, ok := nginx(id, d1).Tag()
		if ok != (want != "") || ok && tag.String() != want {
			t.Errorf("%q: got %v, want %q", id, tag, want)
		}
	}
}

// head begins a lock in YAML.
const head = "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n"

func TestParse(t *testing.T) {
	// In the form that kbld 0.46.0 writes with --imgpkg-lock-output.
	kbld := "---\n" + head + "- annotations:\n    kbld.carvel.dev/id: nginx:1.29\n    kbld.carvel.dev/origins: |\n      - resolved:\n          tag: \"1.29\"\n          url: nginx:1.29\n  image: index.docker.io/library/nginx@" + d1.String() + "\n"
	l, err := lock.Parse([]byte(kbld))
	if err != nil {
		t.Fatal(err)
	}
	if i := l.Images[0]; i.ID != "nginx:1.29" || i.Ref.String() != "docker.io/library/nginx@"+d1.String() || i.Annotations["kbld.carvel.dev/origins"] == "" || i.Platforms != nil {
		t.Errorf("got %+v", i)
	}
	if l, err := lock.Parse([]byte(head + "- image: nginx@" + d1.String() + "\n---\n# the end\n")); err != nil || len(l.Images) != 1 {
		t.Errorf("with an empty document: got %+v, %v", l, err)
	}
	if l, err := lock.Parse([]byte(`{"apiVersion":"imgpkg.carvel.dev/v1alpha1","kind":"ImagesLock","images":[{"image":"nginx@` + d1.String() + `"}]}`)); err != nil || len(l.Images) != 1 {
		t.Errorf("JSON: got %+v, %v", l, err)
	}
}

func TestParseRejects(t *testing.T) {
	item := "- image: nginx@" + d1.String() + "\n"
	for text, want := range map[string]string{
		"":                       "apiVersion",
		"\t":                     "not a lock",
		"a: [":                   "not a lock",
		"kind: Pod\n":            `kind "Pod"`,
		head:                     "no images",
		head + "- image: nginx":  `images[0]: image "nginx" has no digest`,
		head + "- image: UPPER":  "images[0]: InvalidReference",
		head + item + "  x: y\n": "unknown field",
		head + item + "---\n" + head + "- image: redis@" + d2.String() + "\n":                                                                                     "several documents",
		head + item + item + "- image: nginx:1\n":                                                                                                                 "images[2]",
		head + item + "  annotations: {kbld.carvel.dev/id: 'not a reference'}\n":                                                                                  "annotation kbld.carvel.dev/id",
		head + item + "  annotations: {io.imagepin.platforms: '['}\n":                                                                                             "annotation io.imagepin.platforms",
		head + item + "  annotations: {io.imagepin.platforms: '{\"linux/amd64\": \"sha256:1\"}'}\n":                                                               `"linux/amd64"`,
		head + item + "  annotations: {kbld.carvel.dev/id: 'nginx:1'}\n" + "- image: nginx@" + d2.String() + "\n  annotations: {kbld.carvel.dev/id: 'nginx:1'}\n": "two digests",
	} {
		_, err := lock.Parse([]byte(text))
		wantInvalid(t, err, want)
	}
	_, err := lock.Parse(make([]byte, lock.MaxSize+1))
	wantInvalid(t, err, fmt.Sprintf("%d bytes", lock.MaxSize+1))
	_, err = lock.Parse([]byte(head + strings.Repeat("- image: a@"+d1.String()+"\n", lock.MaxImages+1)))
	wantInvalid(t, err, "20001 images")
}

func TestCompare(t *testing.T) {
	without := image("", "redis@"+d1.String())
	old := newLock(t, nginx("nginx:1", d1), nginx("nginx:2", d1), nginx("nginx:3", d1), without)
	annotated := nginx("nginx:1", d1)
	annotated.Annotations = map[string]string{"a": "b"}
	now := newLock(t, annotated, nginx("nginx:2", d2), nginx("nginx:4", d2))
	want := []lock.Change{
		{Name: "docker.io/library/redis@" + d1.String(), Old: d1}, {Name: "nginx:2", Old: d1, New: d2}, {Name: "nginx:3", Old: d1},
		{Name: "nginx:4", New: d2},
	}
	if got := lock.Compare(old, now); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := lock.Compare(old, old); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// FuzzParse checks that a lock that Parse accepts is the same after Marshal and Parse.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "- image: nginx@" + d1.String() + "\n"))
	f.Add([]byte(head + "- image: nginx:1@" + d1.String() + "\n  annotations: {kbld.carvel.dev/id: 'nginx:1', io.imagepin.platforms: '{\"linux/amd64\":\"" + d2.String() + "\"}', a: b}\n"))
	f.Add([]byte(`{"apiVersion":"imgpkg.carvel.dev/v1alpha1","kind":"ImagesLock","images":[{"image":"a/b@` + d1.String() + `","annotations":{}}]}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := lock.Parse(data)
		if err != nil {
			var e *imagepin.Error
			if !errors.As(err, &e) || len(err.Error()) > imagepin.MaxErrorText {
				t.Errorf("got %T of %d bytes", err, len(err.Error()))
			}
			return
		}
		text := marshal(t, l)
		again, err := lock.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if got := marshal(t, again); got != text {
			t.Errorf("got\n%s\nand then\n%s", text, got)
		}
		for i, image := range again.Images {
			if !maps.Equal(image.Platforms, l.Images[i].Platforms) {
				t.Errorf("got %v, want %v", image.Platforms, l.Images[i].Platforms)
			}
		}
	})
}
