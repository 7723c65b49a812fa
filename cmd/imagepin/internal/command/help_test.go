package command

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestHelpOfACommand(t *testing.T) {
	for args, same := range map[string]string{"help": "--help", "help pin": "pin --help", "help pin set": "pin set --help"} {
		got, want := runAt(t, "/absent", nil, strings.Fields(args)...), runAt(t, "/absent", nil, strings.Fields(same)...)
		if got != want || got.code != 0 || got.out == "" {
			t.Errorf("%s: got exit code %d and %q%q, want the same as %s", args, got.code, got.out, got.err, same)
		}
	}
}

// TestExitCodesAreDocumented checks that the help and docs/cli.md have the exit codes of the table.
func TestExitCodesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	help := runAt(t, "/absent", nil, "help", "exit-codes")
	if help.code != 0 {
		t.Error(help.err)
	}
	for _, e := range exitCodes {
		if row := fmt.Sprintf("\n| %d | %s |\n", e.code, e.meaning); !strings.Contains(string(doc), row) {
			t.Errorf("docs/cli.md has no row %q", row)
		}
		if !strings.Contains(help.out, fmt.Sprintf("%-6d%s\n", e.code, e.meaning)) {
			t.Errorf("the help has no %d:\n%s", e.code, help.out)
		}
	}
}
