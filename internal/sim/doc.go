// Package sim contains tests that run a deterministic simulator of a node.
//
// A history runs imagepin's real code (the CRI service and everything below it) on containerd's real metadata store, in
// a bubble of testing/synctest. Each call that waits for something outside of that code parks its goroutine. One
// goroutine runs at a time, and the seed of the history decides which one. Events, garbage collections, other tools,
// registries, callers that give up, and kills are scheduled in the same way. Any of them can be delayed.
//
// In a few histories, a registry drips, locks are applied, canceled, rolled back and removed, or a tenant pulls a private image
// under many names and credentials; in some of them, all of that happens at once.
//
// testdata/found.md lists the bugs that the simulator has found.
//
// At the end of a history no new calls start, events are delivered, grace times pass, and garbage is collected. Then
// the node must satisfy package invariants, as in integration/checker.
//
//	IMAGEPIN_SIM_SEED=17 go test -v -run TestHistories ./internal/sim      replays one history and prints it
//	IMAGEPIN_SIM_HISTORIES=100000 go test -timeout 24h -run TestHistories ./internal/sim
package sim
