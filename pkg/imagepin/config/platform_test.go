package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/platforms"
)

// TestKnownPlatforms checks that all spellings that containerd knows are known, and that others are not.
func TestKnownPlatforms(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "linux": "", "linux/amd64": "", "linux/amd64/v3": "", "Linux/x86_64": "", "linux/aarch64": "", "linux/armhf": "", "linux/i386": "",
		"linux/arm64/8": "", "linux/arm64/V8": "", "linux/arm64/v8.2": "", "linux/arm64/v9": "", "linux/arm/v5": "", "linux/mips64le/softfloat": "",
		"arm64": "", "macos/arm64": "", "windows(10.0.17763)/amd64": "", "linux/riscv64": "",
		"x/y/z/z":          "",                            // it cannot be parsed, which is another error
		"linux/i686":       `unknown architecture "i686"`, // containerd does not normalize it
		"linux/armm":       `unknown architecture "armm" (did you mean "arm"?)`,
		"linux/amd46":      `unknown architecture "amd46" (did you mean "amd64"?)`,
		"liunx/arm64":      `unknown operating system "liunx" (did you mean "linux"?)`,
		"linux/nonsense":   `unknown architecture "nonsense": invalid argument`,
		"amd64/linux":      `unknown operating system "amd64"`,
		"linux/arm64v8/v8": `unknown architecture "arm64v8"`,
		"linux/amd64/v9":   `unknown variant of amd64 "v9"`,
		"linux/arm64/v10":  `unknown variant of arm64 "v10"`,
		"linux/arm/armv7":  `unknown variant of arm "armv7"`,
	} {
		var all []string
		for _, err := range (Images{RuntimePlatforms: map[string]Platform{"kata": {Platform: text}}}).UnknownPlatforms() {
			all = append(all, err.Error())
		}
		if got := strings.Join(all, "; "); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// TestEmulatedPlatforms warns about a platform that the kernel cannot run, unless it has an emulator or a virtual machine runs
// it.
func TestEmulatedPlatforms(t *testing.T) {
	foreign, qemu := "linux/arm64", "qemu-aarch64"
	if platforms.Default().Match(platforms.MustParse(foreign)) {
		foreign, qemu = "linux/amd64", "qemu-x86_64"
	}
	emulators := t.TempDir()
	if err := os.WriteFile(filepath.Join(emulators, qemu), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	otherVariant := map[string]string{"amd64": "linux/amd64/v3", "arm64": "linux/arm64/v9"}[platforms.DefaultSpec().Architecture]
	for _, c := range []struct {
		platform, runtime, binfmt string
		warns                     bool
	}{
		{foreign, "", "/absent", true},
		{foreign, "io.containerd.runc.v2", "/absent", true},
		{foreign, "io.containerd.runc.v2", emulators, false},
		{"linux/riscv64", "", emulators, true},
		{foreign, "io.containerd.kata.v2", "/absent", false},
		{platforms.DefaultString(), "", "/absent", false},
		{otherVariant, "", "/absent", false},
		{"", "", "/absent", false},
	} {
		var config CRI
		config.Images.RuntimePlatforms = map[string]Platform{"h": {Platform: c.platform}}
		config.Runtime.Containerd.Runtimes = map[string]Handler{"h": {Type: c.runtime}}
		if got := config.emulatedPlatforms(c.binfmt); (len(got) > 0) != c.warns {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
