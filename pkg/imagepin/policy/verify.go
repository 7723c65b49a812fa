package policy

import "slices"

// Verify is when the image verifier plugins are called for an image.
type Verify string

const (
	// VerifyPull calls them for each pull.
	VerifyPull Verify = "pull"
	// VerifyRun also calls them when a container is created from an image on the node, and refuses what they do not accept.
	VerifyRun Verify = "run"
)

// VerifiesRuns reports whether some references are verified when a container is created.
func (p *Policy) VerifiesRuns() bool {
	return p.defaults.Verify == VerifyRun || slices.ContainsFunc(p.rules, func(r Rule) bool { return r.Verify == VerifyRun })
}
