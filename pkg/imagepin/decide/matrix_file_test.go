package decide

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// matrixFile has the matrix in a form that other modules can read: integration/pictures checks its flowchart with it.
const matrixFile = "testdata/matrix.json"

type fileCell struct {
	Text string `json:"text"`
	// Outcomes are the outcomes for each state of the node, one for each answer of the registry. Those without a pin are
	// under "", the others under the version that is pinned.
	Outcomes map[string]map[string]string `json:"outcomes,omitempty"`
}

type fileRow struct {
	PullPolicy string   `json:"pullPolicy"`
	Behavior   string   `json:"behavior"`
	Off        fileCell `json:"off"`
	Unpinned   fileCell `json:"unpinned"`
	Pinned     fileCell `json:"pinned"`
}

func inFile(text string, outcomesByPin map[string]outcomes) fileCell {
	c := fileCell{Text: text}
	for pinned, all := range outcomesByPin {
		for states, results := range all {
			for _, state := range strings.Fields(states) {
				if c.Outcomes == nil {
					c.Outcomes = map[string]map[string]string{}
				}
				if c.Outcomes[pinned] == nil {
					c.Outcomes[pinned] = map[string]string{}
				}
				c.Outcomes[pinned][state] = results
			}
		}
	}
	return c
}

// TestMatrixFile checks that the file has the tested matrix. IMAGEPIN_UPDATE_MATRIX=1 writes it.
func TestMatrixFile(t *testing.T) {
	var rows []fileRow
	for _, r := range matrix {
		rows = append(rows, fileRow{
			PullPolicy: r.pullPolicy, Behavior: string(r.behavior),
			Off:      inFile(r.off.text, map[string]outcomes{"": r.off.want}),
			Unpinned: inFile(r.unpinned.text, nil), // as off
			Pinned:   inFile(r.pinned.text, map[string]outcomes{"old": r.pinned.want, "new": r.pinned.other}),
		})
	}
	want, err := json.MarshalIndent(rows, "", " ")
	noError(t, err)
	want = append(want, '\n')
	if os.Getenv("IMAGEPIN_UPDATE_MATRIX") != "" {
		noError(t, os.MkdirAll("testdata", 0o755))
		noError(t, os.WriteFile(matrixFile, want, 0o644))
	}
	got, err := os.ReadFile(matrixFile)
	noError(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s does not have the matrix: run this test with IMAGEPIN_UPDATE_MATRIX=1", matrixFile)
	}
}
