package pull

import (
	"context"
)

// Outcome is what a pull had to do, or how it failed.
type Outcome string

// The outcomes of a pull.
const (
	// UpToDate: the image was ready under its reference.
	UpToDate Outcome = "up_to_date"
	// Recorded: the image was ready under another reference.
	Recorded Outcome = "recorded"
	// Unpacked: the content was on the node.
	Unpacked Outcome = "unpacked"
	Fetched  Outcome = "fetched"
	Failed   Outcome = "failed"
	// Unneeded: the image to repair was removed, or its tag was moved, before the repair.
	Unneeded Outcome = "unneeded"
	// Canceled: all callers had gone before the end of the pull.
	Canceled Outcome = "canceled"
)

// Outcomes lists all outcomes.
var Outcomes = []Outcome{UpToDate, Recorded, Unpacked, Fetched, Failed, Unneeded, Canceled}

// failure returns the outcome of a failed pull. Its context is canceled if all callers have gone.
func failure(ctx context.Context) Outcome {
	if ctx.Err() != nil {
		return Canceled
	}
	return Failed
}

// Observer is notified of pulls.
type Observer interface {
	// Pulled is called at the end of every pull. Concurrent identical pulls count once.
	Pulled(Outcome)
	// FallbackUsed is called when a pull uses the image on the node because the registry did not answer.
	FallbackUsed()
	// RepairFailed is called when a repair fails: after Pulled for that of an image, without it for that of a blob. A
	// canceled repair has not failed.
	RepairFailed()
}
