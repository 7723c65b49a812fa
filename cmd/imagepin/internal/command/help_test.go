package command

import (
	"fmt"
	"os"
	"path/filepath"
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

// TestManPages checks that every visible command has a page with the text of its help, in a directory and printed alone.
func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767312000")
	dir := filepath.Join(t.TempDir(), "share", "man1")
	if got := runAt(t, "/absent", nil, "help", "--man-dir", dir); got.code != 0 || got.out != "" {
		t.Fatalf("exit code %d, %s%s", got.code, got.out, got.err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	visible := 0
	for name, c := range commands((&app{}).root(), "imagepin") {
		if c.Hidden || c.Name == "help" {
			continue
		}
		visible++
		page := strings.ReplaceAll(name, " ", "-")
		b, err := os.ReadFile(filepath.Join(dir, page+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		text := strings.ReplaceAll(string(b), `\-`, "-")
		for _, want := range []string{
			`.TH "` + strings.ToUpper(page) + `" "1" "2026-01-02" "imagepin `, ".SH \"NAME\"\n" + page + " - ", ".SH \"SYNOPSIS\"\n" + name,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", page, want, text)
			}
		}
		printed := runAt(t, "/absent", nil, append([]string{"help", "--man"}, strings.Fields(name)[1:]...)...)
		if printed.code != 0 || printed.out != string(b) {
			t.Errorf("help --man of %s differs from its file: exit code %d, %s%s", name, printed.code, printed.out, printed.err)
		}
	}
	if len(files) != visible {
		t.Errorf("%d pages, want %d", len(files), visible)
	}
	b, err := os.ReadFile(filepath.Join(dir, "imagepin-pull.1"))
	if err != nil || !strings.Contains(string(b), "\n"+`\fB\-\-handler HANDLER\fR`+"\n") {
		t.Errorf("imagepin-pull has no --handler: %v\n%s", err, b)
	}
}

func TestManPageErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"help --man pin sett":          `unknown command "sett" (did you mean "set"?), see imagepin pin --help`,
		"help --man exit-codes":        "exit-codes has no manual page, see imagepin help exit-codes",
		"help --man-dir x pin":         "--man-dir takes neither --man nor a command, see imagepin help --help",
		"help --man-dir " + file:       "mkdir " + file + ": not a directory",
		"help --man --man-dir " + file: "--man-dir takes neither --man nor a command, see imagepin help --help",
	} {
		if got := runAt(t, "/absent", nil, strings.Fields(args)...); got.code != 1 || got.err != "imagepin: "+want+"\n" || got.out != "" {
			t.Errorf("%s: got exit code %d and %s%s, want %s", args, got.code, got.out, got.err, want)
		}
	}
}
