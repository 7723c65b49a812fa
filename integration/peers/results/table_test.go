package results

import "testing"

func TestTable(t *testing.T) {
	suites := []Suite{{"cri", "containerd 2.9.1, CRI"}, {"client", "containerd 2.9.1, client"}}
	runs := []Run{
		{"cri", "stock", Outcomes{"A": Passed, "B": Passed, "C": Failed, "D": Skipped, "E": Failed}},
		{"cri", "plugin", Outcomes{"A": Passed, "B": Passed, "C": Passed, "D": Skipped, "E": Failed}},
		{"cri", "serve", Outcomes{"A": Passed, "B": Failed, "C": Failed, "D": Skipped, "E": Failed}},
		{"client", "stock", Outcomes{"A": Passed, "F": Failed}},
		{"client", "plugin", Outcomes{"A": Passed, "F": Failed}},
	}
	failing := []Entry{{"cri", "stock", "C", "no network"}, {"client", "stock", "F", "no network"}, {"client", "stock", "E", "other"}}
	const want = "Before.\n<!-- make peers-table -->\n" +
		"| tests | stock containerd | imagepin in containerd | `imagepin serve` | worse with imagepin |\n|---|---|---|---|---|\n" +
		"| containerd 2.9.1, CRI | 2 pass, 2 fail, 1 skipped | 3 pass, 1 fail, 1 skipped | 1 pass, 3 fail, 1 skipped | `B` |\n" +
		"| containerd 2.9.1, client | 1 pass, 1 fail | 1 pass, 1 fail | - | none |\n\n" +
		"<details><summary>Tests that fail with stock containerd too, where this table was made</summary>\n\n" +
		"- no network: `C`, `F`\n- no reason is known: `E`\n\n</details>\n<!-- end -->\nAfter.\n"
	got, err := Insert("Before.\n<!-- make peers-table -->\nold\n<!-- end -->\nAfter.\n", Table(suites, runs, failing))
	if err != nil || got != want {
		t.Fatalf("got %s, %v, want %s", got, err, want)
	}

	accepted := []Entry{{"cri", "serve", "B", "why"}}
	if err := CheckRows(got, suites, accepted); err != nil {
		t.Error(err)
	}
	newer := []Suite{{"cri", "containerd 2.9.2, CRI"}, {"client", "containerd 2.9.2, client"}}
	more := append(suites, Suite{"critest", "critest 1.2"})
	for name, err := range map[string]error{
		"another version": CheckRows(got, newer, accepted), "a suite too few": CheckRows(got, more, accepted), "a suite too many": CheckRows(got, suites[:1], accepted),
		"no difference": CheckRows(got, suites, nil), "another difference": CheckRows(got, suites, append(accepted, Entry{"client", "plugin", "A", "why"})),
		"no table": CheckRows("no table\n", suites, accepted),
	} {
		if err == nil {
			t.Errorf("CheckRows accepts the table with %s", name)
		}
	}
}
