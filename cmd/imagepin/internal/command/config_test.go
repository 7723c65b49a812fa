package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write writes files and returns the path of the first.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, files[0])
}

const sectionHeader = `[plugins."io.containerd.imagepin.v1.images"]` + "\n"

func TestConfigCheckOfExamples(t *testing.T) {
	files, err := filepath.Glob("../../../../contrib/config/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		got := runAt(t, "/absent", nil, "config", "check", file)
		if got.code != 0 || !strings.HasPrefix(got.out, file+": OK") {
			t.Errorf("exit code %d, printed %q and %q", got.code, got.out, got.err)
		}
	}
}

func TestConfigDefaultIsValid(t *testing.T) {
	printed := runAt(t, "/absent", nil, "config", "default")
	if !strings.Contains(printed.out, "manifest_pull_timeout = '1m0s'") {
		t.Errorf("printed %q", printed.out)
	}
	got := runAt(t, "/absent", nil, "config", "check", write(t, "config.toml", printed.out))
	if got.code != 0 {
		t.Error(got.err)
	}
}

func TestConfigCheck(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		valid string // printed if the file is valid
		wrong string // part of the error otherwise
	}{
		"empty":         {files: []string{"c.toml", ""}, valid: "uses its defaults"},
		"disabled":      {files: []string{"c.toml", `disabled_plugins = ["io.containerd.imagepin.v1.images"]`}, valid: "is disabled"},
		"directory":     {files: []string{"x/y", ""}, wrong: "x: is a directory"},
		"invalid TOML":  {files: []string{"c.toml", "a = 1\nb = = 2"}, wrong: "c.toml:2:5: toml:"},
		"newer version": {files: []string{"c.toml", "version = 99"}, wrong: "version 99 is newer"},
		"unknown key": {
			files: []string{"c.toml", sectionHeader + "max_concurrent_unpack = 4"},
			wrong: `[plugins."io.containerd.imagepin.v1.images"]: unknown key "max_concurrent_unpack" (did you mean "max_concurrent_unpacks"?)`,
		},
		"invalid value": {files: []string{"c.toml", sectionHeader + `manifest_pull_timeout = "1s"`}, wrong: "manifest_pull_timeout: 1s is less than 30s"},
		"unknown section": {
			files: []string{"c.toml", `[plugins."io.containerd.imagepin.v1.image"]`},
			wrong: `unknown section (did you mean "io.containerd.imagepin.v1.images"?)`,
		},
		"cluster without its part": {
			files: []string{"c.toml", "disabled_plugins = [\"io.containerd.imagepin.part.v1.cluster\"]\n[plugins.\"io.containerd.imagepin.v1.images\".cluster]\nkubeconfig = \"/kubeconfig\""},
			wrong: "cluster.kubeconfig: plugin io.containerd.imagepin.part.v1.cluster is in disabled_plugins",
		},
		"cluster without effect": {
			files: []string{"c.toml", sectionHeader + "[plugins.\"io.containerd.imagepin.v1.images\".cluster]\nkubeconfig = \"/kubeconfig\""},
			valid: `OK for containerd, but [plugins."io.containerd.imagepin.v1.images".cluster] has no effect: no version_consistency is "workload"`,
		},
		"not a table": {files: []string{"c.toml", "[plugins]\n\"io.containerd.imagepin.v1.images\" = 1"}, wrong: "must be a table"},
		"unknown handler": {
			files: []string{"c.toml", sectionHeader + "[plugins.\"io.containerd.imagepin.v1.images\".handlers.kata]\nisolation = \"process\""},
			wrong: "handlers.kata: unknown runtime handler",
		},
		"handler of another file": {
			files: []string{
				"c.toml", "imports = ['conf.d/*.toml', 'b.toml']\n" + sectionHeader,
				"conf.d/a.toml", "[plugins.\"io.containerd.imagepin.v1.images\".handlers.kata]\nisolation = \"process\"",
				"b.toml", "imports = ['c.toml']\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.kata]\nruntime_type = \"x\"",
			},
			valid: "OK for containerd\n",
		},
		"handler of version 2": {
			files: []string{
				"c.toml", "version = 2\n" + sectionHeader + "[plugins.\"io.containerd.imagepin.v1.images\".handlers.kata]\n" +
					"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\nruntime_type = \"x\"",
			},
			valid: "OK for containerd\n",
		},
		"invalid platform": {
			files: []string{"c.toml", "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.runc]\nplatform = \"x/y/z/z\""},
			wrong: "runtime_platforms.runc.platform",
		},
		"unknown snapshotter": {
			files: []string{"c.toml", "[plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"overlay\""},
			wrong: `snapshotter: snapshotter "overlay" is neither built into containerd nor in proxy_plugins (did you mean "overlayfs"?)`,
		},
		"unknown snapshotter of a handler": {
			files: []string{
				"c.toml", "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc]\nsnapshotter = \"nydus\"\n" +
					"[proxy_plugins.nydus]\ntype = \"diff\"\n[proxy_plugins.nydus2]\ntype = \"snapshot\"",
			},
			wrong: `[plugins."io.containerd.cri.v1.runtime"] containerd.runtimes.runc.snapshotter: snapshotter "nydus" is neither built into containerd nor in proxy_plugins (did you mean "nydus2"?)`,
		},
		"snapshotter of another process": {
			files: []string{
				"c.toml", "imports = ['b.toml']\n[plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"stargz\"",
				"b.toml", "[proxy_plugins.stargz]\ntype = \"snapshot\"\naddress = \"/run/stargz\"",
			},
			valid: "OK for containerd",
		},
		"unknown architecture": {
			files: []string{"c.toml", "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.runc]\nplatform = \"linux/armm\""},
			wrong: `runtime_platforms.runc.platform: platform "linux/armm": unknown architecture "armm" (did you mean "arm"?)`,
		},
		"unknown operating system": {
			files: []string{"c.toml", "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.runc]\nplatform = \"linx/arm64\""},
			wrong: `platform "linx/arm64": unknown operating system "linx" (did you mean "linux"?)`,
		},
		"another spelling of a platform": {
			files: []string{"c.toml", "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.runc]\nplatform = \"Linux/x86_64\""},
			valid: "OK for containerd",
		},
		"a later file wins": {
			files: []string{
				"c.toml", "imports = ['b.toml']\n" + sectionHeader + "max_concurrent_unpacks = 2", "b.toml", sectionHeader + "max_concurrent_unpacks = 0",
			},
			wrong: "max_concurrent_unpacks: 0 is less than 1",
		},
		"missing import": {files: []string{"c.toml", "imports = ['absent.toml']"}, wrong: "absent.toml: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, test.files...)
			if name == "directory" {
				path = filepath.Dir(path)
			}
			got := runAt(t, "/absent", nil, "config", "check", path)
			if test.wrong == "" {
				if got.code != 0 || !strings.Contains(got.out, test.valid) {
					t.Errorf("exit code %d, printed %q and %q, want 0 and %q", got.code, got.out, got.err, test.valid)
				}
				return
			}
			if got.code != 1 || got.out != "" || !strings.Contains(got.err, test.wrong) {
				t.Errorf("exit code %d, printed %q and %q, want 1 and the error %q", got.code, got.out, got.err, test.wrong)
			}
		})
	}
}

// TestConfigCheckOfAForeignPlatform warns about a platform that the kernel cannot run, unless a virtual machine runs it.
func TestConfigCheckOfAForeignPlatform(t *testing.T) {
	const platform = "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.%s]\nplatform = \"windows/amd64\"\n"
	const kata = "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n"
	for text, warns := range map[string]bool{fmt.Sprintf(platform, "runc"): true, kata + fmt.Sprintf(platform, "kata"): false} {
		file := write(t, "c.toml", text)
		got := runAt(t, "/absent", nil, "config", "check", file)
		want := `imagepin: warning: ` + file + `: [plugins."io.containerd.cri.v1.images"] runtime_platforms.runc.platform: this machine is ` + hostPlatform
		if got.code != 0 || strings.HasPrefix(got.err, want) != warns || (got.err != "") != warns {
			t.Errorf("exit code %d, printed %q and %q, want a warning: %t", got.code, got.out, got.err, warns)
		}
	}
}

// TestConfigCheckFormats checks that other programs can read the result, also that of an invalid file.
func TestConfigCheckFormats(t *testing.T) {
	valid := write(t, "c.toml", sectionHeader+"[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.runc]\nplatform = \"windows/amd64\"")
	invalid := write(t, "c.toml", "imports = ['b.toml']\n"+sectionHeader+"retian = true", "b.toml", "[plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"x\"")
	unsynced := write(t, "c.toml", sectionHeader+"[plugins.\"io.containerd.metadata.v1.bolt\"]\nno_sync = true")
	serve := write(t, "s.toml", "[plugins.\"io.containerd.cri.v1.images\".runtime_platforms.arm]\nplatform = \"linux/arm46\"")
	for _, c := range []struct {
		args []string
		code int
		want configReport // with only the beginnings of messages
	}{
		{[]string{valid}, 0, configReport{
			Valid: true, Verdict: "OK for containerd", Warnings: []string{`[plugins."io.containerd.cri.v1.images"] runtime_platforms.runc.platform: this machine is `},
		}},
		{[]string{unsynced}, 0, configReport{
			Valid: true, Verdict: "OK for containerd", Warnings: []string{`[plugins."io.containerd.metadata.v1.bolt"] no_sync: `},
		}},
		{[]string{invalid}, 1, configReport{Errors: []configError{
			{File: invalid, Section: "io.containerd.imagepin.v1.images", Key: "retian", Message: `[plugins."io.containerd.imagepin.v1.images"]: unknown key "retian"`},
			{File: filepath.Join(filepath.Dir(invalid), "b.toml"), Section: "io.containerd.cri.v1.images", Key: "snapshotter", Message: `[plugins."io.containerd.cri.v1.images"] snapshotter: snapshotter "x"`},
		}}},
		{[]string{"/absent"}, 1, configReport{Errors: []configError{{File: "/absent", Message: "open /absent: "}}}},
		{[]string{valid, "--serve"}, 0, configReport{Valid: true, Verdict: "OK for imagepin serve"}},
		{[]string{serve, "--serve"}, 1, configReport{Errors: []configError{{
			File: serve, Section: "io.containerd.cri.v1.images", Key: "runtime_platforms.arm.platform",
			Message: `[plugins."io.containerd.cri.v1.images"] runtime_platforms.arm.platform: platform "linux/arm46": unknown architecture "arm46" (did you mean "arm64"?)`,
		}}}},
	} {
		got := runAt(t, "/absent", nil, append([]string{"config", "check", "-o", "json"}, c.args...)...)
		var r configReport
		if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != c.code || got.err != "" {
			t.Fatalf("%q: exit code %d, want %d, printed %q and %q", c.args, got.code, c.code, got.out, got.err)
		}
		same := r.File == c.args[0] && r.Valid == c.want.Valid && r.Verdict == c.want.Verdict && len(r.Errors) == len(c.want.Errors) && len(r.Warnings) == len(c.want.Warnings)
		for i, want := range c.want.Errors {
			same = same && strings.HasPrefix(r.Errors[i].Message, want.Message)
			want.Message = r.Errors[i].Message
			same = same && r.Errors[i] == want
		}
		for i, want := range c.want.Warnings {
			same = same && strings.HasPrefix(r.Warnings[i], want)
		}
		if !same {
			t.Errorf("%q: got\n%s\nwant %+v", c.args, got.out, c.want)
		}
	}
	printed := runAt(t, "/absent", nil, "config", "default", "-o", `go-template={{(index .plugins "io.containerd.imagepin.v1.images").max_concurrent_unpacks}}`)
	if printed.out != "4" {
		t.Errorf("got %q and %q, want a number", printed.out, printed.err)
	}
}

func TestConfigCheckOfServe(t *testing.T) {
	const section = sectionHeader
	for text, want := range map[string]string{
		section: ": OK for imagepin serve\n",
		section + "[plugins.\"io.containerd.imagepin.v1.images\".cluster]\nunavailable = \"fail\"": ": OK for imagepin serve, but [plugins.\"io.containerd.imagepin.v1.images\".cluster] has no effect: kubeconfig is not set\n",
	} {
		file := write(t, "c.toml", text)
		if got := runAt(t, "/absent", nil, "config", "check", "--serve", file); got.code != 0 || got.out != file+want {
			t.Errorf("exit code %d, printed %q and %q, want 0 and %q", got.code, got.out, got.err, file+want)
		}
	}
}

// TestConfigCheckListsAllErrors prints one line for each error, with the file that sets the key.
func TestConfigCheckListsAllErrors(t *testing.T) {
	const section = `[plugins."io.containerd.imagepin.v1.images"]`
	file := write(t,
		"c.toml", "imports = ['b.toml']\n"+sectionHeader+"pull_behavior = 'sometimes'\npull_behaviour = 'x'\nmax_concurrent_unpacks = 'many'\n"+
			"[[plugins.\"io.containerd.imagepin.v1.images\".rules]]\nmatch = ['**']\nversion_consistency = 'x'\n[plugins.'io.containerd.imagepin.v1.image']",
		"b.toml", sectionHeader+"pin_ttl = '1h'\n[plugins.\"io.containerd.imagepin.v1.images\".cluster]\ntimeout = 'soon'\nkubeconfi = '/x'",
	)
	other := filepath.Join(filepath.Dir(file), "b.toml")
	got := runAt(t, "/absent", nil, "config", "check", file)
	for _, want := range []string{
		file + `: [plugins."io.containerd.imagepin.v1.image"]: unknown section (did you mean "io.containerd.imagepin.v1.images"?)`,
		file + ": " + section + `: unknown key "pull_behaviour" (did you mean "pull_behavior"?)`,
		file + ": " + section + " max_concurrent_unpacks: ",
		file + ": " + section + `: pull_behavior "sometimes": must be one of`,
		file + ": " + section + `: rules[1].version_consistency "x": must be one of`,
		other + ": " + section + " pin_ttl: 1h0m0s is less than 24h0m0s",
		other + ": " + section + " cluster.timeout: ",
		other + ": " + section + `: unknown key "cluster.kubeconfi" (did you mean "cluster.kubeconfig"?)`,
	} {
		if !strings.Contains(got.err, want) {
			t.Errorf("printed\n%s\nwant %q", got.err, want)
		}
	}
	if n := strings.Count(got.err, "\n"); got.code != 1 || n != 8 {
		t.Errorf("exit code %d, printed %d lines, want 1 and 8", got.code, n)
	}

	file = write(t, "serve.toml", "adress = '/x'\nlog_level = 'loud'\n[plugins.other]\n[plugins.'io.containerd.cri.v1.images']\nsnapshoter = 'x'\n")
	got = runAt(t, "/absent", nil, "config", "check", "--serve", file)
	for _, want := range []string{
		file + `: unknown key "adress" (did you mean "address"?)`, file + ": log_level: ", file + `: [plugins."other"]: unknown section`,
		file + `: [plugins."io.containerd.cri.v1.images"]: unknown key "snapshoter" (did you mean "snapshotter"?)`,
	} {
		if !strings.Contains(got.err, want) {
			t.Errorf("printed\n%s\nwant %q", got.err, want)
		}
	}
}

// TestConfigCheckOfTheOtherProgram recognizes the configuration of the other program.
func TestConfigCheckOfTheOtherProgram(t *testing.T) {
	serve, containerd := write(t, "s.toml", "containerd_address = '/x'"), write(t, "c.toml", "imports = []\n"+sectionHeader)
	failed(t, runAt(t, "/absent", nil, "config", "check", serve),
		serve+": this is a configuration of imagepin serve, because it has the key \"containerd_address\"\nCheck it with --serve: imagepin config check --serve "+serve)
	failed(t, runAt(t, "/absent", nil, "config", "check", "--serve", containerd),
		containerd+": this is a configuration of containerd, because it has the key \"imports\"\nCheck it without --serve: imagepin config check "+containerd)
	printed := runAt(t, "/absent", nil, "config", "default", "--serve")
	if got := runAt(t, "/absent", nil, "config", "check", "--serve", write(t, "d.toml", printed.out)); got.code != 0 {
		t.Error(got.err)
	}
}
