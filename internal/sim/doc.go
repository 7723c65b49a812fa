// Package sim has a deterministic simulator of a node, as tests.
//
// One history runs the real code of imagepin (the CRI service with all below
// it), on containerd's real metadata store, in a bubble of testing/synctest.
// Every call by which that code waits for something outside is a point at which
// its goroutine parks. One goroutine at a time goes on, and which one the seed
// of the history decides: with it go events, garbage collections, other tools,
// registries, callers that give up and kills, each as late as the seed wants.
//
// testdata/found.md says what it has found.
//
// After a history nothing more happens, events arrive, grace times pass and
// garbage is collected. What integration/checker says of a node is to hold then.
//
//	IMAGEPIN_SIM_SEED=17 go test -v -run TestHistories ./internal/sim      replays one history and prints it
//	IMAGEPIN_SIM_HISTORIES=100000 go test -timeout 24h -run TestHistories ./internal/sim
package sim
