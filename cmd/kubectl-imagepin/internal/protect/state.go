package protect

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// maxState is the size of the largest state in bytes. The API server accepts objects of 1.5 MiB, and ConfigMaps of 1 MiB.
const maxState = 1000 << 10

// State has the tags that a cluster has set in registries: it has a tag before it is set, until it is deleted. A registry does not
// say since when a digest is not needed, and need not list its tags.
type State struct {
	// tags has, for each repository and the first digits of a digest, since when nothing needs it. The time is zero while something
	// does.
	tags map[string]map[string]time.Time
}

// ParseState parses a state. An empty text is a state without tags.
func ParseState(text string) (*State, error) {
	s := &State{tags: make(map[string]map[string]time.Time)}
	if text == "" {
		return s, nil
	}
	var entries map[string]map[string]string
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, err
	}
	for repository, tags := range entries {
		for digits, since := range tags {
			var at time.Time
			if since != "" {
				var err error
				if at, err = time.Parse(time.RFC3339, since); err != nil {
					return nil, fmt.Errorf("%.300s: %.50s: %w", repository, digits, err)
				}
			}
			s.set(repository, digits, at)
		}
	}
	return s, nil
}

// Text returns the state as text. It fails if it is too large.
func (s *State) Text() (string, error) {
	entries := make(map[string]map[string]string)
	for repository, tags := range s.tags {
		entries[repository] = make(map[string]string)
		for digits, since := range tags {
			text := ""
			if !since.IsZero() {
				text = since.UTC().Format(time.RFC3339)
			}
			entries[repository][digits] = text
		}
	}
	text, err := json.Marshal(entries)
	if err == nil && len(text) > maxState {
		err = fmt.Errorf("the tags of %d repositories need %d bytes, and there is place for %d", len(entries), len(text), maxState)
	}
	return string(text), err
}

func (s *State) set(repository, digits string, since time.Time) {
	if s.tags[repository] == nil {
		s.tags[repository] = make(map[string]time.Time)
	}
	s.tags[repository][digits] = since
}

// observe records what is needed at a time: tags that are about to be set, and since when others are not needed. A time that was
// recorded stays, unless it is in the future. selected reports whether tags are set in a repository.
func (s *State) observe(needs *Needs, selected func(repository string) bool, now time.Time) {
	needed := make(map[string]map[string]bool)
	for key := range needs.all {
		if needed[key.Repository] == nil {
			needed[key.Repository] = make(map[string]bool)
		}
		digits := short(key.Digest)
		needed[key.Repository][digits] = true
		if selected(key.Repository) {
			s.set(key.Repository, digits, time.Time{})
		}
	}
	for repository, tags := range s.tags {
		for digits, since := range tags {
			switch {
			case needed[repository][digits]:
				tags[digits] = time.Time{}
			case since.IsZero() || since.After(now):
				tags[digits] = now.Truncate(time.Second)
			}
		}
	}
}

// old is a tag whose digest nothing needs.
type old struct {
	repository, digits string
	since              time.Time
}

// olderThan returns the tags whose digests nothing has needed since a time or longer.
func (s *State) olderThan(at time.Time, selected func(repository string) bool) []old {
	var all []old
	for repository, tags := range s.tags {
		if !selected(repository) {
			continue
		}
		for digits, since := range tags {
			if !since.IsZero() && !since.After(at) {
				all = append(all, old{repository, digits, since})
			}
		}
	}
	return all
}

// remove removes a tag that was deleted, unless it is needed again.
func (s *State) remove(o old) {
	if since, ok := s.tags[o.repository][o.digits]; !ok || since.IsZero() {
		return
	}
	delete(s.tags[o.repository], o.digits)
	if len(s.tags[o.repository]) == 0 {
		delete(s.tags, o.repository)
	}
}

// Equal reports whether two states have the same tags and times.
func (s *State) Equal(other *State) bool {
	return maps.EqualFunc(s.tags, other.tags, func(x, y map[string]time.Time) bool { return maps.EqualFunc(x, y, time.Time.Equal) })
}
