package main

import "slices"

// situation is the start of one container: what the flowchart asks about. The test takes the situations, and what has to
// come out, from the matrix that pkg/imagepin/decide tests.
type situation struct {
	pulls    bool   // kubelet calls PullImage
	behavior string // pull_behavior
	pinned   string // the version that is pinned, or ""
	node     string // the state of the tag on the node
	answer   string // of the registry: old or new, the version that the tag has; the status 404, 401 or 503; or gone, if only the tag is gone
}

// image is the image of a version on the node.
type image struct {
	version string
	own     bool // ready for the target of the handler
	pulled  bool // by this node, from a registry
	proved  bool // the caller gets it without a request: by a proof, or because it was imported from a file
}

// images are the images of the tag for each state of the node in the matrix. The newest is the last one.
var images = map[string][]image{
	"absent":         nil,
	"pulled":         {{"old", true, true, true}},
	"other-target":   {{"old", false, true, true}},
	"split":          {{"old", true, true, true}, {"new", false, true, true}},
	"imported-split": {{"old", true, false, true}, {"new", false, true, true}},
	"adopted":        {{"old", true, false, false}},
	"imported":       {{"old", true, false, true}},
	"unproved":       {{"old", true, true, false}},
	// Pulled for another target, with another credential.
	"imported-pulled": {{"old", true, false, false}, {"old", false, true, false}},
}

// digest returns the image of the digest D on the node: the pinned one, otherwise that of the tag.
func (s situation) digest() (image, bool) {
	found := slices.Clone(images[s.node])
	if s.pinned != "" {
		found = slices.DeleteFunc(found, func(i image) bool { return i.version != s.pinned })
	}
	if !s.pulls {
		found = slices.DeleteFunc(found, func(i image) bool { return !i.own })
	}
	slices.SortStableFunc(found, func(a, b image) int {
		if s.behavior == "once" && a.pulled != b.pulled { // pulled images come first
			return trueFirst(a.pulled, b.pulled)
		}
		return trueFirst(a.own, b.own)
	})
	if len(found) == 0 {
		return image{}, false
	}
	return found[0], true
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// onNode reports whether D is on the node, and proved whether the caller gets it without a request.
func (s situation) onNode() bool { _, ok := s.digest(); return ok }
func (s situation) proved() bool { i, ok := s.digest(); return ok && i.proved }

// The answers of the registry, as the flowchart has them.
const (
	aDigest  = "digest"
	rejected = "401, 403, 404"
	noAnswer = "no answer, 429, 5xx"
	yes      = "yes"
	no       = "no"
)

func asked(b bool) string {
	if b {
		return yes
	}
	return no
}

// byDigest returns the answer of the registry for D, and byTag for the tag, or for D if that is pinned and the tag is gone.
func (s situation) byDigest() string {
	switch s.answer {
	case "old", "new", "gone":
		return aDigest
	case "503":
		return noAnswer
	}
	return rejected
}

func (s situation) byTag() string {
	if s.answer == "gone" && s.pinned == "" {
		return rejected
	}
	return s.byDigest()
}

// failed is the outcome of a start that the registry has rejected.
func (s situation) failed() string {
	if s.answer == "gone" {
		return "404"
	}
	return s.answer
}

// digestPolicy is the flowchart of docs/digest-policy.md.
var digestPolicy = []step[situation]{
	{
		name: "start", kind: process, col: 0, row: 0,
		text: "A container starts with a tag. D is the digest of the node's lock, or else of the pin of the pod's scope, or else of the tag's image on the node, if there is one.",
		next: map[string]string{"": "pulls"},
	},
	{
		name: "pulls", kind: question, col: 0, row: 1,
		text: "Does kubelet pull? imagePullPolicy Always, or IfNotPresent if D is not ready for the handler",
		next: map[string]string{yes: "first", no: "ready"},
		ask:  func(s situation) string { return asked(s.pulls) },
	},
	{
		name: "ready", kind: question, col: 1, row: 1,
		text: "Is D ready on the node for the pod's handler?",
		next: map[string]string{yes: "runs local", no: "absent"},
		ask:  func(s situation) string { return asked(s.onNode()) },
	},
	{
		name: "runs local", kind: runs, col: 2, row: 1, text: "Runs D. No request.",
		result: func(s situation) string { i, _ := s.digest(); return i.version + "!" },
	},
	{
		name: "absent", kind: fails, col: 1, row: 0, text: "kubelet sees no image. Never: fails. IfNotPresent: pulls.",
		result: func(situation) string { return "absent" },
	},
	{
		name: "first", kind: question, col: 0, row: 2,
		text: "May D run before the tag is looked up? once: D was pulled. prefer-cached: D is on the node. default, always: no.",
		next: map[string]string{yes: "proof", no: "head tag"},
		ask: func(s situation) string {
			i, ok := s.digest()
			return asked(ok && (s.behavior == "prefer-cached" || s.behavior == "once" && i.pulled))
		},
	},
	{
		name: "proof", kind: question, col: 1, row: 2,
		text: "Has the pod's credential a proof for D, or was it imported?",
		next: map[string]string{yes: "runs cached", no: "head digest"},
		ask:  func(s situation) string { return asked(s.proved()) },
	},
	{
		name: "runs cached", kind: runs, col: 2, row: 2, text: "Runs D. No request.",
		result: func(s situation) string { i, _ := s.digest(); return i.version + "!" },
	},
	{
		name: "head digest", kind: question, col: 1, row: 3,
		text: "HEAD of D at the registry, with the pod's credential. The answer?",
		next: map[string]string{aDigest: "runs D", rejected: "fails D", noAnswer: "fails D"},
		ask:  situation.byDigest,
	},
	{
		name: "runs D", kind: runs, col: 2, row: 3, text: "Runs D. Nothing is fetched.",
		result: func(s situation) string { i, _ := s.digest(); return i.version },
	},
	{
		name: "fails D", kind: fails, col: 2, row: 4, text: "Fails, with the error of the registry.",
		result: situation.failed,
	},
	{
		name: "head tag", kind: question, col: 0, row: 4,
		text: "HEAD of the tag at the registry, with the pod's credential; after a 404, of D if it is pinned. The answer?",
		next: map[string]string{aDigest: "runs answer", rejected: "fails", noAnswer: "fallback"},
		ask:  situation.byTag,
	},
	{
		name: "runs answer", kind: runs, col: 1, row: 4,
		text: "Runs the pinned digest if there is a pin, else the returned one. Fetches what is missing.",
		result: func(s situation) string {
			if s.pinned != "" {
				return s.pinned
			}
			return s.answer
		},
	},
	{
		name: "fallback", kind: question, col: 0, row: 5,
		text: "Is pull_behavior default, D on the node, and has the credential a proof for D?",
		next: map[string]string{yes: "runs fallback", no: "fails"},
		ask:  func(s situation) string { return asked(s.behavior == "default" && s.proved()) },
	},
	{
		name: "runs fallback", kind: runs, col: 0, row: 6, text: "Runs D, with a warning in the log.",
		result: func(s situation) string { i, _ := s.digest(); return i.version },
	},
	{
		name: "fails", kind: fails, col: 1, row: 5, text: "Fails, with the error of the registry.",
		result: situation.failed,
	},
	{
		name: "note", kind: note, col: 1, row: 6, wide: true,
		text: "Where a container runs a digest: with version_consistency node or workload, and no pin in the scope, that digest becomes the pin. An existing pin does not change.",
	},
}
