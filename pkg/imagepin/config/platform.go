package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/similar"
)

// Operating systems and architectures that an image can have: those of Go (go tool dist list), in the spelling of
// [platforms.Normalize].
var (
	knownOS = []string{
		"aix", "android", "darwin", "dragonfly", "freebsd", "illumos", "ios", "js", "linux", "netbsd", "openbsd", "plan9", "solaris",
		"wasip1", "windows",
	}
	knownArch = []string{
		"386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le", "riscv64", "s390x", "wasm",
	}
)

// knownVariants are the variants of the architectures whose variants containerd compares. Others can have any.
var knownVariants = map[string][]string{
	"amd64": {"v1", "v2", "v3", "v4"},
	"arm":   {"v5", "v6", "v7", "v8"},
	"arm64": {
		"v8", "v8.0", "v8.1", "v8.2", "v8.3", "v8.4", "v8.5", "v8.6", "v8.7", "v8.8", "v8.9",
		"v9", "v9.0", "v9.1", "v9.2", "v9.3", "v9.4", "v9.5", "v9.6", "v9.7",
	},
}

// UnknownPlatforms returns an error for each platform of a runtime handler whose operating system, architecture or variant no image
// can have. Such a handler starts no pod. Errors are ErrInvalidArgument and name the key.
func (i Images) UnknownPlatforms() (errs []error) {
	for _, handler := range slices.Sorted(maps.Keys(i.RuntimePlatforms)) {
		text := i.RuntimePlatforms[handler].Platform
		spec, err := platforms.Parse(text)
		if text == "" || err != nil {
			continue // [CRI.Handlers] has the error
		}
		spec = platforms.Normalize(spec)
		variants, compared := knownVariants[spec.Architecture]
		if !compared || spec.Variant == "" {
			variants = []string{spec.Variant}
		}
		for _, part := range []struct {
			what, name string
			known      []string
		}{
			{"operating system", spec.OS, knownOS}, {"architecture", spec.Architecture, knownArch},
			{"variant of " + spec.Architecture, spec.Variant, variants},
		} {
			if slices.Contains(part.known, part.name) {
				continue
			}
			why := fmt.Sprintf("platform %q: unknown %s %q", text, part.what, part.name)
			if meant := similar.Closest(part.name, part.known); meant != "" {
				why += fmt.Sprintf(" (did you mean %q?)", meant)
			}
			errs = append(errs, sectionError(ImagesSection, "runtime_platforms."+handler+".platform", errors.New(why)))
		}
	}
	return errs
}

// emulatedPlatforms returns a warning for each platform that the kernel of this machine cannot run. binfmt is the directory of
// the kernel's list of emulators.
func (c CRI) emulatedPlatforms(binfmt string) (warnings []string) {
	own, runs := platforms.DefaultSpec(), platforms.Default()
	for _, handler := range slices.Sorted(maps.Keys(c.Images.RuntimePlatforms)) {
		text := c.Images.RuntimePlatforms[handler].Platform
		spec, err := platforms.Parse(text)
		runtime := c.Runtime.Containerd.Runtimes[handler].Type
		if text == "" || err != nil || runtime != "" && runtime != plugins.RuntimeRuncV2 || runs.Match(spec) || mayRun(own, platforms.Normalize(spec)) || emulates(binfmt, platforms.Normalize(spec)) {
			continue
		}
		warnings = append(warnings, fmt.Sprintf("[plugins.%q] runtime_platforms.%s.platform: this machine is %s and has no emulator for %s (binfmt_misc)",
			ImagesSection, handler, platforms.Format(own), text))
	}
	return warnings
}

// mayRun reports whether a machine may run a platform of another variant. containerd does not know which variants of these
// architectures a processor has.
func mayRun(own, spec ocispec.Platform) bool {
	return spec.OS == own.OS && spec.Architecture == own.Architecture && (spec.Architecture == "amd64" || spec.Architecture == "arm64")
}

// binfmt is where Linux lists emulators.
const binfmt = "/proc/sys/fs/binfmt_misc"

// qemuNames are the architectures that QEMU names in another way.
var qemuNames = map[string]string{
	"386": "i386", "amd64": "x86_64", "arm64": "aarch64", "loong64": "loongarch64", "mipsle": "mipsel", "mips64le": "mips64el",
}

// emulates reports whether the kernel has an emulator for Linux programs of an architecture.
func emulates(binfmt string, spec ocispec.Platform) bool {
	name := spec.Architecture
	if qemu, ok := qemuNames[name]; ok {
		name = qemu
	}
	_, err := os.Stat(filepath.Join(binfmt, "qemu-"+name))
	return spec.OS == "linux" && err == nil
}
