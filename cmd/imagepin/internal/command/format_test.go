package command

import (
	"strings"
	"testing"
)

func TestTemplateOutput(t *testing.T) {
	got := run(t, recorded(), "pin", "ls", "-o", `go-template={{range .pins}}{{.scope}} {{.root.digest}}{{"\n"}}{{end}}`)
	if want := "node " + digestOld + "\n"; got.code != 0 || !strings.HasPrefix(got.out, want) {
		t.Errorf("exit code %d, got %q%q, want %q", got.code, got.out, got.err, want)
	}
}

func TestYAMLOutput(t *testing.T) {
	golden(t, "pin-rm.yaml", run(t, recorded(), "pin", "rm", appRef, "-o", "yaml").out)
}

// TestEveryCommandHasAllFormats checks that the output for programs is not mixed with other output.
func TestEveryCommandHasAllFormats(t *testing.T) {
	for _, args := range everyCall {
		for format, want := range map[string]string{"go-template={{len `x`}}": "1", "yaml": ": "} {
			got := run(t, recorded(), append(strings.Fields(args), "-o", format)...)
			if got.out == "" || !strings.Contains(got.out, want) || strings.HasPrefix(format, outputTemplate) && len(got.out) != 1 {
				t.Errorf("%s -o %q: exit code %d, printed %q%q", args, format, got.code, got.out, got.err)
			}
		}
	}
}

func TestInvalidTemplate(t *testing.T) {
	got := runAt(t, "/absent", nil, "images", "-o", "go-template={{.keys") // the error comes before a call
	if got.code != 1 || !strings.Contains(got.err, "unclosed action") {
		t.Errorf("exit code %d, printed %q", got.code, got.err)
	}
	failed(t, run(t, recorded(), "images", "-o", "go-template={{index .keys 99}}"),
		`-o go-template: template: output:1:2: executing "output" at <index .keys 99>: error calling index: index out of range: 99`)
}

// TestJSONPath checks that -o jsonpath is that of kubectl.
func TestJSONPath(t *testing.T) {
	for template, want := range map[string]string{
		"{.keys[*].imageId}":                         imageID + " " + imageID,
		`{range .keys[*]}{.ref}{"\n"}{end}`:          appRef + "\n" + armKey().GetRef() + "\n",
		`{.keys[?(@.pin=="node")].root.digest}`:      digestOld,
		"{.keys[0].size} {.keys[0].target.platform}": "880359 " + hostPlatform,
		"{.keys[0].absent}":                          "",
	} {
		if got := run(t, recorded(), "images", "-o", "jsonpath="+template); got.code != 0 || got.out != want {
			t.Errorf("%s: exit code %d, printed %q%q, want %q", template, got.code, got.out, got.err, want)
		}
	}
	got := runAt(t, "/absent", nil, "images", "-o", "jsonpath={.keys") // the error comes before a call
	failed(t, got, `invalid value "jsonpath={.keys" for flag -o: unclosed action, see imagepin images --help`)
}
