package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestQuick checks that -quick measures each side.
func TestQuick(t *testing.T) {
	var out, progress bytes.Buffer
	if err := command(testkit.Context(t), []string{"-quick"}, &out, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, want := range []string{"registry on loopback: pod runs after", "60 MiB/s for each connection: all files read after", "stargz, imagepin"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}
