package main

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/command"
)

func TestEveryCommandHasAPage(t *testing.T) {
	all := pages(command.Root(), "2026-01-02")
	for _, name := range []string{"imagepin", "imagepin-pull", "imagepin-pin", "imagepin-pin-set"} {
		if all[name] == "" {
			t.Errorf("missing page %s", name)
		}
	}
	for name, text := range all {
		for _, want := range []string{
			`.TH "` + strings.ToUpper(escape(name)) + `" "1" "2026\-01\-02" "imagepin `,
			".SH \"NAME\"\n" + escape(name) + ` \- `,
			".SH \"SYNOPSIS\"\nimagepin",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", name, want, text)
			}
		}
	}
	if pull := all["imagepin-pull"]; !strings.Contains(pull, "\n"+`\fB\-\-handler HANDLER\fR`+"\n") {
		t.Errorf("imagepin-pull has no --handler:\n%s", pull)
	}
}

// TestTextIsNotARequest checks that roff does not read text as a request.
func TestTextIsNotARequest(t *testing.T) {
	text := page([]*cli.Command{{Name: "x", Usage: "a 'b' \"c\"", Description: ".so /etc/passwd\n'tis\n\\fBno\\fR"}}, "1", "")
	for _, want := range []string{"\n\\&.so /etc/passwd\n", "\n\\&\\(aqtis\n", "\n\\efBno\\efR\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q in\n%s", want, text)
		}
	}
}
