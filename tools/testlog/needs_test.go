package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMissing(t *testing.T) {
	has := func() error { return nil }
	lacks := func() error { return errors.New("no /dev/x") }
	list := []need{
		{"X", lacks, "modprobe x", []string{"a", "b", "other"}},
		{"Y", has, "buy one", []string{"a"}},
		{"Z", lacks, "later", []string{"b"}},
		{"W", lacks, "later", []string{"other"}},
	}
	const report = "This machine lacks:\n  X: no /dev/x (modprobe x)\n    needed by a b\n  Z: no /dev/x (later)\n    needed by b\n"
	for _, c := range []struct{ planned, without, report, err string }{
		{"a b c", "", report, "to run what this machine can run: make test WITHOUT='a b'"},
		{"a b c d", "d a", report, "to run what this machine can run: make test WITHOUT='a b d'"},
		{"a b c", "b a", report, ""},
		{"a b", "", report, "no stage can run on this machine"},
		{"c", "", "", ""},
		{"a b c", "test-c", "", `WITHOUT has "test-c", which is not a stage of this run (a b c)`},
	} {
		out, err := missing(list, strings.Fields(c.planned), strings.Fields(c.without))
		text := ""
		if err != nil {
			text = err.Error()
		}
		if out != c.report || text != c.err {
			t.Errorf("%s without %q:\n%serror %q", c.planned, c.without, out, text)
		}
	}
}

func TestChecks(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "device")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for name, c := range map[string]struct {
		check func() error
		err   string
	}{
		"program":       {programs("mkfs.ext4"), `"mkfs.ext4": executable file not found`},
		"device":        {device(file), ""},
		"no device":     {device(file + "x"), "no such file"},
		"filesystem":    {filesystem("proc"), ""},
		"no filesystem": {filesystem("nofs"), "modprobe nofs"},
		"memory":        {memory(0), ""},
		"no memory":     {memory(1 << 20), "MiB are available, and 1073741824 are needed"},
		"all":           {all(device(file), programs("x")), `"x"`},
	} {
		err := c.check()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := available(strings.NewReader("MemFree: 1 kB\n")); err == nil {
		t.Error("no error without MemAvailable")
	}
	if n, err := available(strings.NewReader("MemTotal: 7 kB\nMemAvailable:    12 kB\n")); n != 12 || err != nil {
		t.Error(n, err)
	}
}

// TestNeedsAreThoseOfTheMakefile: a stage that downloads from Debian needs Debian, and one with EROFS its file system.
func TestNeedsAreThoseOfTheMakefile(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	prerequisites := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):([^=#\n]*)(##.*)?$`).FindAllStringSubmatch(string(text), -1) {
		prerequisites[m[1]] = append(prerequisites[m[1]], strings.Fields(m[2])...)
	}
	var reaches func(target, what string) bool
	reaches = func(target, what string) bool {
		return slices.ContainsFunc(prerequisites[target], func(p string) bool {
			// That one stage follows another one does not make it need the same.
			return p == what || !strings.HasPrefix(p, "test-") && reaches(p, what) || strings.HasSuffix(p, "-binaries") && reaches(p, what)
		})
	}
	plan := regexp.MustCompile(`(?s)\nALL += (.*?)\nifdef SHORT`).FindSubmatch(text)
	if plan == nil {
		t.Fatal("no ALL in the Makefile")
	}
	stages := strings.Fields(strings.ReplaceAll(string(plan[1]), "\\", " "))
	for _, n := range needs {
		for _, s := range n.stages {
			if !slices.Contains(stages, s) {
				t.Errorf("%s: %s is not a stage of %v", n.name, s, stages)
			}
		}
		targets := map[string][]string{"Debian": {"downloads", "decompressors", "debian-roots"}, "EROFS": {"downloads"}, "FUSE": {"lazy-binaries"}}[n.name]
		for _, s := range stages {
			made := slices.ContainsFunc(targets, func(target string) bool { return reaches(s, target) })
			if made && !slices.Contains(n.stages, s) || !made && slices.Contains(n.stages, s) && (n.name == "Debian" || n.name == "EROFS") {
				t.Errorf("%s and %s: the Makefile and the list of needs differ", n.name, s)
			}
		}
	}
}
