package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// TestCheck checks that check finds what can be wrong.
func TestCheck(t *testing.T) {
	type state struct {
		pins    []v1alpha1.ImagePin
		results []claimed
		won     int
	}
	pin := func(group int, node string) v1alpha1.ImagePin {
		return v1alpha1.ImagePin{Spec: v1alpha1.ImagePinSpec{
			Digest: digestOf(node).String(), Owner: v1alpha1.Owner{Name: ownerName(group)}, By: &v1alpha1.Claimer{Node: node},
		}}
	}
	agent := func(node string, group int, got string) claimed {
		return claimed{node: node, own: digestOf(node), owner: ownerName(group), digest: digestOf(got)}
	}
	for name, tc := range map[string]struct {
		change func(*state)
		want   string // empty if nothing is wrong
	}{
		"right":                     {func(*state) {}, ""},
		"two winners":               {func(s *state) { s.won = 3 }, "3 agents have created an ImagePin, want 2"},
		"no winner":                 {func(s *state) { s.won = 1 }, "1 agents have created an ImagePin, want 2"},
		"a pin too many":            {func(s *state) { s.pins = append(s.pins, pin(2, "a")) }, "there are 3 ImagePins, want 2"},
		"a pin is missing":          {func(s *state) { s.pins = s.pins[:1] }, "there are 1 ImagePins, want 2"},
		"own digest":                {func(s *state) { s.results[1] = agent("b", 0, "b") }, "1 agents have another digest"},
		"digest of another pin":     {func(s *state) { s.results[3] = agent("d", 1, "a") }, "1 agents have another digest"},
		"digest is not the claimer": {func(s *state) { s.pins[0].Spec.By.Node = "b" }, "which is not that of the agent that created it"},
		"made by nobody":            {func(s *state) { s.pins[0].Spec.By = nil }, "which is not that of the agent that created it"},
		"error":                     {func(s *state) { s.results[2].err = errors.New("refused") }, "1 agents have no digest: refused"},
	} {
		s := &state{
			pins:    []v1alpha1.ImagePin{pin(0, "a"), pin(1, "c")},
			results: []claimed{agent("a", 0, "a"), agent("b", 0, "a"), agent("c", 1, "c"), agent("d", 1, "c")},
			won:     2,
		}
		tc.change(s)
		err := check(s.pins, s.results, 2, s.won)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
