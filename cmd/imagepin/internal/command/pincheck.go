package command

import (
	"fmt"
	"strings"
	"time"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// The outcomes of lookups, see package lookup.
const (
	lookupPresent  = "present"
	lookupGone     = "gone"
	lookupNoAnswer = "no_answer"
)

// lookedUp describes when the registry of a pin was asked last, and what it has answered, if that is not the usual answer.
func (s style) lookedUp(l *api.Lookup) string {
	if l == nil {
		return none
	}
	return s.time(l.GetAt()) + lookupOutcome(l)
}

func lookupOutcome(l *api.Lookup) string {
	switch l.GetOutcome() {
	case "", lookupPresent:
		return ""
	}
	return ", " + strings.ReplaceAll(l.GetOutcome(), "_", " ")
}

// lookupText is lookedUp with all details.
func lookupText(s style, l *api.Lookup) string {
	if l == nil {
		return "not since the start"
	}
	text := s.since(l.GetAt()) + lookupOutcome(l)
	if !unset(l.GetSince()) {
		text += " since " + stamp(l.GetSince())
	}
	if l.GetWhy() != "" {
		first, _, _ := strings.Cut(l.GetWhy(), "\n")
		text += ": " + first
	}
	return text
}

// checkedPins returns the documented exit code of pin ls --check.
func checkedPins(pins []*api.Pin) error {
	var differ, silent int
	var why string
	for _, p := range pins {
		switch outcome := p.GetLookup().GetOutcome(); {
		case outcome == lookupNoAnswer:
			if silent++; why == "" {
				why, _, _ = strings.Cut(p.GetLookup().GetWhy(), "\n")
			}
		case outcome == lookupGone || p.GetDrift() != nil:
			differ++
		}
	}
	switch {
	case silent > 0:
		return fmt.Errorf("pins whose registry did not answer: %d, for example: %s", silent, why)
	case differ > 0:
		return exitError(exitChanged)
	}
	return nil
}

// lookupsText describes the lookups in the background. It is empty if there are none.
func lookupsText(p *api.PinStatus, now time.Time) string {
	interval := p.GetLookupIntervalSeconds()
	if interval == 0 {
		return ""
	}
	text := "every " + (time.Duration(interval) * time.Second).String()
	if at := p.GetLookedUpAt(); !unset(at) {
		return text + ", last " + style{now: now}.ago(at)
	}
	return text + ", none yet"
}
