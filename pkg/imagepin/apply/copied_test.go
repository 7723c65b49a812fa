package apply

import (
	"testing"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// copied returns an image of a lock that was copied to another repository.
func copied(t *testing.T, name, text string) lock.Image {
	t.Helper()
	i := image(t, name, text, "linux/amd64")
	ref, err := imagepin.ParseReference("copies.example/app@" + i.Ref.Digest().String())
	noError(t, err)
	i.Ref = ref.(reference.Canonical)
	return i
}

// source returns the source of a reference on the node.
func (e *env) source(ref string) imagepin.Source {
	got, _ := e.Get(imagepin.Key{Ref: ref, Target: e.runtimes.Default().Target})
	return got.Source
}

// TestCopiedImage checks what the tag of an image becomes that was copied to another repository. No registry is asked for it, and
// it is imported only if the copy is.
func TestCopiedImage(t *testing.T) {
	for _, want := range []imagepin.Source{imagepin.SourcePull, imagepin.SourceImported} {
		t.Run(string(want), func(t *testing.T) {
			e := newEnv(t, handlers...)
			i := copied(t, "app:1", "one")
			if want == imagepin.SourceImported { // by another tool
				k := imagepin.Key{Ref: i.Ref.String(), Target: e.runtimes.Default().Target}
				e.machine.entries[k] = imagepin.Entry{Key: k, Root: root("one"), Source: want}
			}
			_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, i)})
			noError(t, err)
			if got := e.source("registry.example/app:1"); got != want {
				t.Errorf("the tag is %q, want %q", got, want)
			}
			if tag := e.machine.made[len(e.machine.made)-1]; tag.From == pull.FromRegistry || tag.Ref.String() != "registry.example/app:1" {
				t.Errorf("a registry is asked for %s", tag.Ref)
			}
		})
	}
}

// TestCopiedByEarlierVersion checks that the tags of a lock that was pulled, and of the one before it, become pulled at the next
// start if an earlier version recorded them as imported. A tag whose image came from a bundle stays imported.
func TestCopiedByEarlierVersion(t *testing.T) {
	e := newEnv(t, handlers...)
	old := copied(t, "app:1", "old")
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, old)})
	noError(t, err)
	// The content of this one came from a bundle.
	bundled := copied(t, "tool:1", "tool")
	k := imagepin.Key{Ref: bundled.Ref.String(), Target: e.runtimes.Default().Target}
	e.machine.entries[k] = imagepin.Entry{Key: k, Root: root("tool"), Source: imagepin.SourceImported}
	_, err = e.Apply(e.ctx, Request{Lock: lockOf(t, copied(t, "app:1", "new"), bundled)})
	noError(t, err)
	for text, ref := range map[string]string{
		"new": "registry.example/app:1", "old": "registry.example/app@" + root("old").Digest.String(),
	} {
		k := imagepin.Key{Ref: ref, Target: e.runtimes.Default().Target}
		e.machine.entries[k] = imagepin.Entry{Key: k, Root: root(text), Source: imagepin.SourceImported}
	}
	e.took()
	noError(t, e.complete(e.ctx))
	for ref, want := range map[string]imagepin.Source{
		"registry.example/app:1": imagepin.SourcePull, "registry.example/app@" + root("old").Digest.String(): imagepin.SourcePull,
		"registry.example/tool:1": imagepin.SourceImported,
	} {
		if got := e.source(ref); got != want {
			t.Errorf("%s is %q, want %q", ref, got, want)
		}
	}
	if got := e.took(); len(got) != 0 {
		t.Errorf("made %q", got)
	}
}
