package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// write writes files below a new directory. The content of go.mod is added.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\n\ngo 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testsOf runs go test on files, which go test must not have in its cache of results.
func testsOf(t *testing.T, files map[string]string, args ...string) (output string, rc int) {
	t.Helper()
	t.Chdir(write(t, files))
	t.Setenv(socketEnv, "")
	var out bytes.Buffer
	rc, err := runTests(&out, "test-unit", append([]string{"go", "test", "-vet=off", "-count=1"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), rc
}

// want fails the test if the output lacks a line that matches an expression.
func want(t *testing.T, output string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !regexp.MustCompile(`(?m)^` + l + `$`).MatchString(output) {
			t.Errorf("no line %q in:\n%s", l, output)
		}
	}
}

func without(t *testing.T, output string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(output, text) {
			t.Errorf("%q is in:\n%s", text, output)
		}
	}
}

func TestPassing(t *testing.T) {
	out, rc := testsOf(t, map[string]string{
		"a/a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Log(\"quiet\"); t.Run(\"sub\", func(t *testing.T) {}) }\nfunc TestB(t *testing.T) {}\n",
		"b/b.go":      "package b\n",
		"c/c_test.go": "package c\nimport \"testing\"\nfunc TestC(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Skip(\"no\", \"disk\") }) }\n",
	}, "./...")
	if rc != 0 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `  0:\d\d  test-unit         begins`, "ok  \texample.com/m/a\t.*s\t3 tests in test-unit at 0:\\d\\d",
		"Skipped:", "  test-unit: example.com/m/c TestC/x: no disk", `test-unit +ok +2 +5 +0:\d\d`, `all +ok +2 +5 +0:\d\d`)
	without(t, out, "quiet", "example.com/m/b", "=== RUN", "FAIL")
}

func TestVerbose(t *testing.T) {
	out, _ := testsOf(t, map[string]string{"a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Log(\"12 histories\") }\n"}, "-v", ".")
	want(t, out, `    a_test.go:3: 12 histories`)
	without(t, out, "=== RUN", "PASS")
}

func TestFailing(t *testing.T) {
	out, rc := testsOf(t, map[string]string{
		"a/a_test.go": `package a
import "testing"
func TestGood(t *testing.T) { t.Log("quiet") }
func TestBad(t *testing.T) {
	for _, n := range []string{"x", "y", "z"} {
		t.Run(n, func(t *testing.T) { t.Parallel(); t.Log("in", n); if n != "z" { t.Error("bad", n) } })
	}
}
`,
		"b/b_test.go": "package b\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n",
	}, "./...")
	if rc != 1 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `  0:\d\d  test-unit         FAILED  example.com/m/a TestBad`, `--- FAIL: TestBad \(0.00s\)`, ` *--- FAIL: TestBad/x \(0.00s\)`,
		"FAIL\texample.com/m/a\t.*", "ok  \texample.com/m/b\t.*s\t1 test in test-unit .*", "Failed:", "test-unit: example.com/m/a TestBad",
		`test-unit +FAILED +2 +6 .*`, `all +1 failure +2 +6 .*`)
	without(t, out, "quiet", "in z", "=== ")
	if n := strings.Count(out, "--- FAIL: TestBad "); n != 2 {
		t.Errorf("the failure is printed %d times, not at once and at the end:\n%s", n, out)
	}
	// Each subtest is in one piece.
	if !regexp.MustCompile(`in x\n.*bad x\n`).MatchString(out) {
		t.Errorf("the output of subtests is mixed:\n%s", out)
	}
}

// TestCrashes has the ways in which the tests of a package end without a result of each.
func TestCrashes(t *testing.T) {
	const head = "package a\nimport (\"os\"; \"testing\"; \"time\"; \"fmt\")\nvar _ = os.Exit\nvar _ = time.Sleep\nvar _ = fmt.Println\n"
	for name, c := range map[string]struct {
		code string
		args []string
		want []string
	}{
		"panic":          {"func TestP(t *testing.T) { t.Log(\"before\"); panic(\"at the disco\") }\n", nil, []string{`--- FAIL: TestP .*`, `.*: before`, `panic: at the disco.*`, `goroutine \d+ .*`}},
		"other panic":    {"func TestP(t *testing.T) { go func() { panic(\"elsewhere\") }(); select {} }\n", nil, []string{`panic: elsewhere.*`, `.*TestP.*`}},
		"timeout":        {"func TestT(t *testing.T) { t.Log(\"before\"); time.Sleep(time.Hour) }\n", []string{"-timeout", "100ms"}, []string{`panic: test timed out after 100ms`, `.*TestT \(0s\)`, `.*: before`}},
		"exit":           {"func TestE(t *testing.T) { fmt.Println(\"leaving\"); os.Exit(3) }\n", nil, []string{"leaving"}},
		"main":           {"func TestMain(m *testing.M) { fmt.Println(\"no root\"); os.Exit(1) }\n", nil, []string{"no root"}},
		"late":           {"func TestMain(m *testing.M) { m.Run(); fmt.Println(\"leaked\"); os.Exit(1) }\nfunc TestX(t *testing.T) {}\n", nil, []string{"leaked"}},
		"late after":     {"func TestMain(m *testing.M) { m.Run(); fmt.Println(\"leaked\"); os.Exit(1) }\nfunc TestX(t *testing.T) { t.Error(\"first\") }\n", nil, []string{"leaked", ".*: first", `--- FAIL: TestX .*`}},
		"does not build": {"func TestX(t *testing.T) { undefined() }\n", nil, []string{`.*a_test.go:\d+:\d+: undefined: undefined`}},
	} {
		t.Run(name, func(t *testing.T) {
			out, rc := testsOf(t, map[string]string{"a_test.go": head + c.code}, append(c.args, ".")...)
			if rc == 0 {
				t.Error("exit code 0")
			}
			want(t, out, append(c.want, "FAIL\texample.com/m.*", `  0:\d\d  test-unit         FAILED  example.com/m .*`, `test-unit +FAILED +1 .*`)...)
		})
	}
}

func TestNoPackage(t *testing.T) {
	out, rc := testsOf(t, nil, ".")
	if rc != 1 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `no Go files in .*`, "FAIL\t. .*", `test-unit +FAILED .*`)
}

// TestUsage has a go test that runs nothing.
func TestUsage(t *testing.T) {
	out, rc := testsOf(t, nil, "-count=many", ".")
	if rc != 2 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `invalid value "many" for flag -count: .*`, `exit status 2`, `test-unit +FAILED +0 +0 .*`, `all +1 failure .*`)
}

func TestCached(t *testing.T) {
	t.Chdir(write(t, map[string]string{"a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n"}))
	t.Setenv(socketEnv, "")
	var out bytes.Buffer
	for range 2 {
		out.Reset()
		if _, err := runTests(&out, "test-unit", []string{"go", "test", "-vet=off", "."}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, out.String(), "ok  \texample.com/m\t\\(cached\\)\t1 test in .*")
}

func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "testlog")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// TestSignal ends a run in the middle of a test. The package has failed, and the summary says so.
func TestSignal(t *testing.T) {
	dir := write(t, map[string]string{"a_test.go": `package a
import ("io"; "os"; "testing")
func TestA(t *testing.T) {}
func TestB(t *testing.T) {
	begun, err := os.OpenFile("begun", os.O_WRONLY, 0)
	if err != nil { t.Fatal(err) }
	begun.Close()
	end, err := os.Open("end")
	if err != nil { t.Fatal(err) }
	io.Copy(io.Discard, end)
}
`})
	for _, name := range []string{"begun", "end"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	end, err := os.OpenFile(filepath.Join(dir, "end"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	cmd := exec.Command(build(t), "test", "test-unit", "--", "go", "test", "-vet=off", ".")
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "begun")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if rc := cmd.ProcessState.ExitCode(); rc != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", rc)
	}
	want(t, out.String(), "FAIL\texample.com/m", "exit status 143", "test-unit +FAILED +1 .*")
}

// TestMake runs stages at the same time, with testlog as the shell of make.
func TestMake(t *testing.T) {
	dir := write(t, map[string]string{
		"a/a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Error(\"bad\") }\n",
		"b/b_test.go": "package b\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n",
		"Makefile": `SHELL = $(TESTLOG)
.SHELLFLAGS = shell '$@' /bin/sh -c
TEST = $(TESTLOG) test $@ -- go test -vet=off
all: $(addprefix ended-,$(GOALS))
ended-%: % ; @$(TESTLOG) end $*
good: built ; $(TEST) ./b
bad: | good ; $(TEST) ./a
after: bad ; $(TEST) ./b
broken: ; @echo sorry $(shell echo a lot); exit 3
chatty: ; @echo nobody reads this; $(TEST) ./b && echo nor this
late: ; @$(TESTLOG) test $@ -- go test ./b && { echo table differs; false; }
built: ; @echo built
`,
	})
	bin := build(t)
	planned := func(stages, goals string) (string, int) {
		cmd := exec.Command(bin, "run", "-stages", stages, "-without", "never", "--", "make", "-s", "built", "TESTLOG="+bin, "--", "make", "-s", "-j3", "all", "GOALS="+goals, "TESTLOG="+bin)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	run := func(goals string) (string, int) { return planned(goals, goals) }

	out, rc := run("good chatty")
	if rc != 0 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `.*  good +ended +1 package, 1 test, 0:0\d`, `good +ok +1 +1 .*`, `chatty +ok +1 +1 .*`, `all +ok +2 +2 .*`)
	without(t, out, "nobody", "nor this", "FAIL", "built")

	out, rc = run("good bad after")
	if rc != 2 {
		t.Errorf("exit code %d, and not that of make", rc)
	}
	want(t, out, `--- FAIL: TestA .*`, "FAIL\texample.com/m/a\t.*", `good +ok +1 +1 .*`, `bad +FAILED +1 +1 .*`, `after +did not run: something before it failed`, `all +1 failure .*`)

	out, rc = run("broken")
	if rc != 2 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `.*  broken +FAILED  echo sorry a lot; exit 3`, `sorry a lot`, `broken +FAILED +0 +0 .*`)

	out, rc = run("late")
	if rc != 2 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, "ok  \texample.com/m/b\t.*", `table differs`, `late +FAILED +1 +1 .*`)

	// The Makefile forgets a stage.
	out, rc = planned("good forgotten never", "good")
	if rc != 1 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `good +ok +1 +1 .*`, `forgotten +did not run.*`, `never +left out by name`, `all +FAILED +1 +1 .*`)

	// Make itself fails.
	out, rc = run("nosuch")
	if rc != 2 {
		t.Errorf("exit code %d", rc)
	}
	want(t, out, `make: .* No rule to make target .*`, `nosuch +did not run: .*`, `all +FAILED +0 +0 .*`)
}
