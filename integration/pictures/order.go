package main

// combination are the pins that a reference has for a pod of a revision: what the chart of the order asks about. The test takes
// the combinations, and what has to come out, from the file that pkg/imagepin/decide tests.
type combination struct {
	ByDigest, Locked, Cluster, ImagePin bool
	Consistency                         string
	Used, Set                           string // the scopes of pins, node or revision, that a use has made and an operator has set
	Decides                             string
}

// shared reports whether an ImagePin can apply.
func (c combination) shared() bool { return c.Cluster && c.Consistency == "workload" }

// own is the scope of the node's pins that version_consistency selects.
func (c combination) own() string {
	switch {
	case c.Consistency == "node":
		return "node"
	case c.Consistency == "workload" && !c.Cluster:
		return "revision"
	}
	return "-"
}

// whatDecides is the chart of docs/concepts.md. The result is the scope of the pin that decides, or why there is none.
var whatDecides = []step[combination]{
	{
		name: "start", kind: process, col: 0, row: 0, text: "A pod or a pull names an image.",
		next: map[string]string{"": "digest"},
	},
	{
		name: "digest", kind: question, col: 0, row: 1, text: "1. Does the reference have a digest?",
		next: map[string]string{yes: "that digest", no: "lock"},
		ask:  func(c combination) string { return asked(c.ByDigest) },
	},
	{
		name: "that digest", kind: runs, col: 1, row: 1, wide: true, text: "That digest. It needs no pin.",
		result: func(combination) string { return "digest" },
	},
	{
		name: "lock", kind: question, col: 0, row: 2, text: "2. Does the lock of the node name the tag?",
		next: map[string]string{yes: "locked", no: "cluster"},
		ask:  func(c combination) string { return asked(c.Locked) },
	},
	{
		name: "locked", kind: runs, col: 1, row: 2, wide: true,
		text:   "The digest of the lock, whatever the configuration is. Scope: lock. From: imagepin apply, or a drop directory.",
		result: func(combination) string { return "lock" },
	},
	{
		name: "cluster", kind: question, col: 0, row: 3,
		text: "3. Does the node use the Kubernetes API, is version_consistency workload, and has the revision an ImagePin?",
		next: map[string]string{yes: "ImagePin", no: "own"},
		ask:  func(c combination) string { return asked(c.shared() && c.ImagePin) },
	},
	{
		name: "ImagePin", kind: runs, col: 1, row: 3, wide: true,
		text:   "The digest of the ImagePin, on all nodes. Scope: workload/NAMESPACE/KIND/NAME/UID. If the API server does not answer: that of the node's copy, or of a provisional pin.",
		result: func(combination) string { return "ImagePin" },
	},
	{
		name: "own", kind: question, col: 0, row: 4,
		text: "4. Has the tag a pin in the scope that version_consistency selects?",
		next: map[string]string{yes: "pinned", no: "set"},
		ask:  func(c combination) string { return asked(c.own() == c.Used || c.own() == c.Set) },
	},
	{
		name: "pinned", kind: runs, col: 1, row: 4, wide: true,
		text:   "The digest of the pin, on this node. Scope: node, or workload/NAMESPACE/LABEL=VALUE. From: the first use, refresh, or pin set.",
		result: combination.own,
	},
	{
		name: "set", kind: question, col: 0, row: 5,
		text: "5. Has an operator set a pin in another scope of the pod: of its revision, or else of the node?",
		next: map[string]string{yes: "operator", no: "none"},
		ask:  func(c combination) string { return asked(c.Set != "") },
	},
	{
		name: "operator", kind: runs, col: 1, row: 5, wide: true,
		text:   "The digest of that pin, also with version_consistency off. From: imagepin pin set.",
		result: func(c combination) string { return c.Set },
	},
	{
		name: "none", kind: process, col: 0, row: 6, wide: true,
		text:   "No pin: the registry's answer for the tag, or the image on the node. imagePullPolicy and pull_behavior decide which. version_consistency node or workload makes a pin of it: the next use is answered above.",
		result: func(combination) string { return "none" },
	},
}
