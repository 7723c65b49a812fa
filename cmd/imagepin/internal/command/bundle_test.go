package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/registrytest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// lockOf returns a lock of references with a tag in YAML.
func lockOf(t *testing.T, digests map[string]digest.Digest) []byte {
	t.Helper()
	var all []lock.Image
	for id, d := range digests {
		ref, err := imagepin.ParseReference(id)
		if err != nil {
			t.Fatal(err)
		}
		canonical, err := reference.WithDigest(reference.TrimNamed(ref), d)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lock.Image{ID: id, Ref: canonical})
	}
	l, err := lock.New(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// bundleRig is a registry with one image for two platforms, and its lock.
func bundleRig(t *testing.T) (lockYAML []byte, path string) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	r := registrytest.New(t)
	d := r.Image("shop/app:v1", "v1", "linux/amd64", "linux/arm64")
	return lockOf(t, map[string]digest.Digest{r.Host() + "/shop/app:v1": d.Digest}), filepath.Join(t.TempDir(), "bundle.tar.zst")
}

func TestBundle(t *testing.T) {
	lockYAML, path := bundleRig(t)
	got := runAt(t, "/absent", bytes.NewReader(lockYAML), "bundle", "-", "-o", path, "--platform", "linux/arm64")
	if got.code != 0 || got.err != "" {
		t.Fatalf("exit code %d: %s", got.code, got.err)
	}
	for _, want := range []string{"Wrote " + path, "Images:     1\n", "Platforms:  linux/arm64\n", "Absent:     linux/amd64 (1)\n"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in %s", want, got.out)
		}
	}
	text := runAt(t, "/absent", nil, "bundle", "verify", path)
	if text.code != 0 || !strings.HasSuffix(text.out, path+": OK\n") || !strings.Contains(text.out, "Absent:     linux/amd64 (1)\n") {
		t.Errorf("exit code %d: %s%s", text.code, text.out, text.err)
	}
	for _, args := range [][]string{{"bundle", "verify", path, "-o", "json"}, {"-o", "json", "bundle", "verify", path}} {
		object := runAt(t, "/absent", nil, args...)
		var report bundleReport
		if err := json.Unmarshal([]byte(object.out), &report); err != nil || object.code != 0 {
			t.Fatalf("%q: exit code %d, %v: %s%s", args, object.code, err, object.out, object.err)
		}
		if report.Lock != digest.FromBytes(lockYAML) || len(report.Images) != 1 || !slices.Equal(report.Platforms, []string{"linux/arm64"}) || len(report.Absent) != 1 {
			t.Errorf("%q: report %+v", args, report)
		}
	}
}

func TestBundleSince(t *testing.T) {
	lockYAML, path := bundleRig(t)
	file := filepath.Join(t.TempDir(), "lock.yaml")
	if err := os.WriteFile(file, lockYAML, 0o600); err != nil {
		t.Fatal(err)
	}
	got := runAt(t, "/absent", nil, "bundle", file, "-o", path, "--since", file)
	if got.code != 0 || !strings.Contains(got.out, "Since:      "+digest.FromBytes(lockYAML).String()) || !strings.Contains(got.out, "Omitted:") {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.err)
	}
}

func TestInvalidBundleIsReported(t *testing.T) {
	lockYAML, path := bundleRig(t)
	if got := runAt(t, "/absent", bytes.NewReader(lockYAML), "bundle", "-", "-o", path); got.code != 0 {
		t.Fatal(got.err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	got := runAt(t, "/absent", nil, "bundle", "verify", path, "-o", "json")
	if got.code != 1 || got.out != "" || !strings.Contains(got.err, "InvalidBundle") || !strings.Contains(got.err, "truncated") {
		t.Errorf("exit code %d: %s%s", got.code, got.out, got.err)
	}
}

func TestInvalidArgumentsOfBundle(t *testing.T) {
	lockYAML, path := bundleRig(t)
	for _, c := range []struct {
		args []string
		in   string
		text string
	}{
		{[]string{"bundle"}, "", "takes LOCK"},
		{[]string{"bundle", "-"}, string(lockYAML), "needs -o FILE"},
		{[]string{"bundle", "-", "-o", path + ".zip"}, string(lockYAML), "must end in .tar or .tar.zst"},
		{[]string{"bundle", "-", "-o", path, "--platform", "linux/amd64/v1/x/y"}, string(lockYAML), "--platform"},
		{[]string{"bundle", "-", "-o", path}, "hello", "InvalidLock"},
		{[]string{"bundle", "/absent/lock", "-o", path}, "", "/absent/lock"},
		{[]string{"bundle", "-", "-o", path, "--since", "/absent/lock"}, string(lockYAML), "/absent/lock"},
		{[]string{"bundle", "-", "-o", path, "--platform", "linux/s390x"}, string(lockYAML), "NoMatchingPlatform"},
		{[]string{"bundle", "verify"}, "", "takes FILE"},
		{[]string{"bundle", "verify", "/absent/bundle"}, "", "InvalidBundle"},
	} {
		got := runAt(t, "/absent", strings.NewReader(c.in), c.args...)
		if got.code != 1 || !strings.Contains(got.err, c.text) {
			t.Errorf("%q: exit code %d, %q, want %q", c.args, got.code, got.err, c.text)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a bundle was written")
	}
}
