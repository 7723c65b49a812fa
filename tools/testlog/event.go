package main

// Kind is what an event is about.
type Kind string

const (
	// StageBegins is sent for each command of a stage. The first one counts.
	StageBegins Kind = "stage-begins"
	StageEnds   Kind = "stage-ends"
	// ItemBegins and ItemEnds are about a package of tests, or a command that is not go test.
	ItemBegins Kind = "item-begins"
	ItemEnds   Kind = "item-ends"
	// Failure has the output of a test, a package or a command that has failed.
	Failure Kind = "failure"
)

// Event is what a process of a run reports. Which fields are set depends on its kind.
type Event struct {
	Kind  Kind
	Stage string
	// Item is the import path of a package, or a command.
	Item string `json:",omitempty"`
	// Test is the test that has failed. It is empty if a whole package or a command has failed.
	Test string `json:",omitempty"`
	// Output is of the failure, or with -v of a package that has passed.
	Output string `json:",omitempty"`

	Failed bool `json:",omitempty"`
	// Command is an item that is not a package.
	Command bool `json:",omitempty"`
	// Empty packages have no tests.
	Empty   bool    `json:",omitempty"`
	Cached  bool    `json:",omitempty"`
	Tests   int     `json:",omitempty"`
	Seconds float64 `json:",omitempty"`
	Skipped []Skip  `json:",omitempty"`
}

// Skip is a test that was skipped.
type Skip struct{ Test, Reason string }
