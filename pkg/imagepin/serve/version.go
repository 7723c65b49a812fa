//go:build unix

package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// minVersion is the first minor version of containerd that imagepin serve supports. Older versions report less of their
// configuration, and have other plugins for the CRI.
var minVersion = minorVersion{2, 1}

// minorVersion is the major and the minor number of a version.
type minorVersion struct{ major, minor int }

func (v minorVersion) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

var versionPattern = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})(\D|$)`)

// parseMinor also parses the versions of distributions, such as 1.6.20~ds1 and v2.1.5-k3s1. A custom build can have any
// version.
func parseMinor(version string) (_ minorVersion, ok bool) {
	m := versionPattern.FindStringSubmatch(version)
	if m == nil {
		return minorVersion{}, false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return minorVersion{major, minor}, true
}

// tooOld returns an errIncompatible if a version is older than minVersion. It accepts a version that it cannot parse:
// missing features are found when containerd is probed.
func tooOld(version string) error {
	v, ok := parseMinor(version)
	if !ok || cmp.Or(cmp.Compare(v.major, minVersion.major), cmp.Compare(v.minor, minVersion.minor)) >= 0 {
		return nil
	}
	return fmt.Errorf("%w: it is containerd %s, but %s or later is required", errIncompatible, version, minVersion)
}

// checkVersion uses the version service of containerd, not of its CRI, which differs in older versions. If the version
// service is disabled, it accepts any version.
func (c *containerd) checkVersion(ctx context.Context) error {
	v, err := c.client.Version(ctx)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("containerd on %s: %w", c.address, dialError(err))
	}
	return tooOld(v.Version)
}

// dialError returns the reason why containerd's socket cannot be connected to, without the texts of gRPC around it. It returns
// other errors unchanged.
func dialError(err error) error {
	_, reason, ok := strings.Cut(err.Error(), "transport: Error while dialing: ")
	if !ok {
		return err
	}
	return errors.New(strings.TrimSuffix(reason, `"`))
}
