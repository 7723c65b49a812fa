// Package pintest tests that an implementation of [pin.Authority] does what package decide relies on.
package pintest

import (
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// Subject is an authority that has no pin yet.
type Subject struct {
	pin.Authority
	// Question is about a tag that the authority has a say about once it is pinned.
	Question pin.Question
	// Pin makes the source of the authority have a digest for the question.
	Pin func(root ocispec.Descriptor)
	// Other is a question that the authority has no say about. It is nil if there is none.
	Other *pin.Question
	// Requests is how many requests the authority has sent, and Writes how often it has written something.
	Requests, Writes func() int
	// Uses is the first use of the question. It is nil if no first use makes a pin of the authority.
	Uses *pin.FirstUse
	// Foreign is a first use that makes a pin of another authority.
	Foreign pin.FirstUse
}

// Root returns the descriptor of a build.
func Root(build string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(build), Size: int64(len(build))}
}

// Test runs the tests. Each opens a new authority.
func Test(t *testing.T, open func(t *testing.T) Subject) {
	for name, test := range map[string]func(*testing.T, Subject){
		"not pinned": func(t *testing.T, s Subject) { s.means(t, "") },
		"pinned":     func(t *testing.T, s Subject) { s.Pin(Root("one")); s.means(t, "one") },
		"moved": func(t *testing.T, s Subject) {
			s.Pin(Root("one"))
			s.record(t)
			s.Pin(Root("two"))
			s.means(t, "two")
		},
		"a digest is not pinned": func(t *testing.T, s Subject) {
			s.Pin(Root("one"))
			s.Question.Ref += "@" + Root("two").Digest.String()
			s.Question.Policy.Scope = ""
			s.means(t, "")
		},
		"first use":            func(t *testing.T, s Subject) { s.firstUse(t) },
		"concurrent first use": func(t *testing.T, s Subject) { s.concurrentUses(t) },
		"another question": func(t *testing.T, s Subject) {
			s.Pin(Root("one"))
			if before := s.Requests(); s.Other != nil {
				looked, look := s.Look(*s.Other)
				asked, ask, err := s.Ask(t.Context(), *s.Other)
				if look || ask || err != nil || s.Requests() != before {
					t.Errorf("got %+v, %+v, %v after %d requests, want no answer", looked, asked, err, s.Requests()-before)
				}
			}
		},
		"foreign first use": func(t *testing.T, s Subject) {
			before := s.Writes()
			if held, ok, err := s.Claim(t.Context(), s.Foreign, Root("one")); ok || err != nil || s.Writes() != before {
				t.Errorf("got %+v, %t, %v after %d writes, want that it is not claimed", held, ok, err, s.Writes()-before)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// means checks what the authority answers: a build, or "" if the question is not decided. Reads write nothing, and a look sends no
// request. An answer is the same when it is recorded, and from memory after that.
func (s Subject) means(t *testing.T, build string) {
	t.Helper()
	before := s.Writes()
	asked, ok, err := s.Ask(t.Context(), s.Question)
	s.check(t, "ask", asked, ok, err, build)
	requests := s.Requests()
	if asked.Pod.Owner != nil {
		s.Question.Pod = asked.Pod
	}
	looked, ok := s.Look(s.Question)
	s.check(t, "look", looked, ok, nil, build)
	if s.Requests() != requests || s.Writes() != before {
		t.Errorf("%d requests and %d writes by reads, want none", s.Requests()-requests, s.Writes()-before)
	}
	recorded, ok := s.record(t)
	s.check(t, "record", recorded, ok, nil, build)
	looked, ok = s.Look(s.Question)
	s.check(t, "look after it was recorded", looked, ok, nil, build)
}

// record asks, and has the answer recorded.
func (s Subject) record(t *testing.T) (_ pin.Answer, ok bool) {
	t.Helper()
	q := s.Question
	q.Record = true
	answer, ok, err := s.Ask(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return answer, ok
}

func (s Subject) check(t *testing.T, what string, a pin.Answer, ok bool, err error, build string) {
	t.Helper()
	switch {
	case err != nil || a.Err != nil:
		t.Errorf("%s: %v, %v", what, err, a.Err)
	case build == "" && ok && a.Decides():
		t.Errorf("%s: pinned to %s, want no pin", what, a.Pin.Root.Digest)
	case build == "" && s.Uses != nil && !strings.Contains(s.Question.Ref, "@") && a.Scope != s.Uses.ID.Scope:
		t.Errorf("%s: scope %q, want that of the first use: %q", what, a.Scope, s.Uses.ID.Scope)
	case build != "" && (!ok || a.Pin == nil || a.Pin.Root.Digest != Root(build).Digest || a.Pin.Scope != a.Scope):
		t.Errorf("%s: got %+v, %t, want a pin to %s", what, a, ok, build)
	}
}

// firstUse makes a pin that later uses do not change.
func (s Subject) firstUse(t *testing.T) {
	if s.Uses == nil {
		return
	}
	for _, build := range []string{"one", "two"} {
		if held, ok, err := s.Claim(t.Context(), *s.Uses, Root(build)); err != nil || !ok || held.Root.Digest != Root("one").Digest {
			t.Fatalf("claim of %s: got %+v, %t, %v, want the digest of the first use", build, held, ok, err)
		}
	}
	s.means(t, "one")
}

// concurrentUses all get the same digest.
func (s Subject) concurrentUses(t *testing.T) {
	if s.Uses == nil {
		return
	}
	var all sync.WaitGroup
	got := make([]digest.Digest, 4)
	for i := range got {
		all.Go(func() {
			held, _, err := s.Claim(t.Context(), *s.Uses, Root(string(rune('a'+i))))
			if got[i] = held.Root.Digest; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, d := range got {
		if d != got[0] {
			t.Errorf("got %v, want one digest", got)
		}
	}
}
