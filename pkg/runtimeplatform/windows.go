package runtimeplatform

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// windows is the os of a Windows platform.
const windows = "windows"

// osVersion is the os.version of a Windows platform. The zero value means no version.
type osVersion struct {
	major, minor uint8
	build        uint16
	revision     uint64
}

// parseOSVersion parses major.minor.build[.revision]. It accepts the same texts as containerd: a revision that is not a
// number counts as 0, and 0.0.0 is not a version.
func parseOSVersion(s string) (osVersion, bool) {
	parts := strings.SplitN(s, ".", 5)
	if len(parts) < 3 {
		return osVersion{}, false
	}
	var n [3]uint64
	for i, bits := range []int{8, 8, 16} {
		var err error
		if n[i], err = strconv.ParseUint(parts[i], 10, bits); err != nil {
			return osVersion{}, false
		}
	}
	v := osVersion{major: uint8(n[0]), minor: uint8(n[1]), build: uint16(n[2])}
	if v == (osVersion{}) {
		return osVersion{}, false
	}
	if len(parts) > 3 {
		if revision, err := strconv.ParseUint(parts[3], 10, 64); err == nil {
			v.revision = revision
		}
	}
	return v, true
}

// compareBuild compares versions by build. A revision is an update of a build and does not affect compatibility.
func (v osVersion) compareBuild(w osVersion) int {
	return cmp.Or(
		cmp.Compare(v.major, w.major),
		cmp.Compare(v.minor, w.minor),
		cmp.Compare(v.build, w.build),
	)
}

// compare compares versions by build and revision. No version is less than all others.
func (v osVersion) compare(w osVersion) int {
	return cmp.Or(v.compareBuild(w), cmp.Compare(v.revision, w.revision))
}

// windowsMatcher adds to a containerd matcher what it does not have for Windows: numerical order and hypervisor
// isolation.
type windowsMatcher struct {
	// base matches os, architecture, os.features and, for process isolation, compatible builds. It accepts a platform
	// without os.version.
	base platforms.MatchComparer

	hypervisor bool

	// newest is the newest build that hypervisor isolation accepts, if limited is true.
	newest  osVersion
	limited bool
}

func newWindowsMatcher(base platforms.MatchComparer, version string, isolation Isolation) *windowsMatcher {
	m := &windowsMatcher{base: base, hypervisor: isolation == IsolationHypervisor}
	m.newest, m.limited = parseOSVersion(version)
	return m
}

// Match reports whether p runs with the handler's isolation.
func (m *windowsMatcher) Match(p ocispec.Platform) bool {
	if !m.hypervisor {
		return m.base.Match(p)
	}
	version := p.OSVersion
	p.OSVersion = ""
	return m.upToNewest(version) && m.base.Match(p)
}

func (m *windowsMatcher) upToNewest(version string) bool {
	if version == "" || !m.limited {
		return true
	}
	v, ok := parseOSVersion(version)
	return ok && v.compareBuild(m.newest) <= 0
}

// Less orders by match, architecture, os.version (newest first) and number of os.features (most first). Platforms that
// do not match are equal.
func (m *windowsMatcher) Less(a, b ocispec.Platform) bool {
	matchA, matchB := m.Match(a), m.Match(b)
	if !matchA || !matchB {
		return matchA && !matchB
	}

	if bareA, bareB := bare(a), bare(b); bareA.Architecture != bareB.Architecture || bareA.Variant != bareB.Variant {
		if m.base.Less(bareA, bareB) {
			return true
		}
		if m.base.Less(bareB, bareA) {
			return false
		}
	}

	versionA, _ := parseOSVersion(a.OSVersion)
	versionB, _ := parseOSVersion(b.OSVersion)
	if c := versionA.compare(versionB); c != 0 {
		return c > 0
	}
	return len(a.OSFeatures) > len(b.OSFeatures)
}

// bare returns p with only the fields of the architecture. Without the version, base does not compare versions as text.
func bare(p ocispec.Platform) ocispec.Platform {
	return ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}
