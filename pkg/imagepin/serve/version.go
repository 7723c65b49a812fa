//go:build unix

package serve

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// oldest is the first minor version of containerd that imagepin serve works
// beside: those before tell less of their configuration, and have other plugins
// for the CRI.
var oldest = minorVersion{2, 1}

// minorVersion is the major and the minor number of a version.
type minorVersion struct{ major, minor int }

func (v minorVersion) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var leading = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(\D|$)`)

// parseMinor reads what distributions make of a version too, such as 1.6.20~ds1
// and v2.1.5-k3s1. Whoever builds containerd can call it anything.
func parseMinor(version string) (_ minorVersion, ok bool) {
	m := leading.FindStringSubmatch(version)
	if m == nil {
		return minorVersion{}, false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return minorVersion{major, minor}, true
}

// tooOld is an errRefused where a version is before the oldest. A version that
// is no number is not: what it lacks is found when it is asked.
func tooOld(version string) error {
	v, ok := parseMinor(version)
	if !ok || cmp.Or(cmp.Compare(v.major, oldest.major), cmp.Compare(v.minor, oldest.minor)) >= 0 {
		return nil
	}
	return fmt.Errorf("%w: it is containerd %s, and %s or later is needed", errRefused, version, oldest)
}

// lookAtVersion asks containerd itself, not its CRI, which older ones have in
// another way. Where the version service is disabled, nothing is known.
func (c *containerd) lookAtVersion(ctx context.Context) error {
	v, err := c.client.Version(ctx)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("containerd on %s: %w", c.address, err)
	}
	return tooOld(v.Version)
}
