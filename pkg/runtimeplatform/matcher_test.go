package runtimeplatform_test

import (
	"slices"
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// index parses the platforms of an image index.
func index(t testing.TB, specifiers ...string) []ocispec.Platform {
	t.Helper()
	list, err := platforms.ParseAll(specifiers)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// selected returns the platforms that match, best first.
func selected(m platforms.MatchComparer, index []ocispec.Platform) []string {
	matching := slices.DeleteFunc(slices.Clone(index), func(p ocispec.Platform) bool { return !m.Match(p) })
	slices.SortStableFunc(matching, order(m))
	var texts []string
	for _, p := range matching {
		texts = append(texts, platforms.FormatAll(p))
	}
	return texts
}

func order(m platforms.MatchComparer) func(a, b ocispec.Platform) int {
	return func(a, b ocispec.Platform) int {
		switch {
		case m.Less(a, b):
			return -1
		case m.Less(b, a):
			return 1
		default:
			return 0
		}
	}
}

func TestVariants(t *testing.T) {
	busybox := []string{
		"linux/arm/v5", "linux/386", "linux/arm/v6", "windows(10.0.20348.1)/amd64", "linux/riscv64",
		"linux/arm/v7", "linux/arm64", "linux/amd64", "linux/amd64/v3",
	}
	for _, tc := range []struct {
		name, host, platform string
		index, want          []string
	}{
		{
			name: "node prefers amd64", host: "linux/amd64",
			index: busybox, want: []string{"linux/amd64", "linux/386"},
		},
		{
			name: "node runs 386 without amd64", host: "linux/amd64",
			index: []string{"linux/arm64", "linux/386"}, want: []string{"linux/386"},
		},
		{
			name: "configured platform is the node's own", host: "linux/amd64", platform: "linux/amd64",
			index: busybox, want: []string{"linux/amd64", "linux/386"},
		},
		{
			name: "amd64/v3", host: "linux/amd64", platform: "linux/amd64/v3",
			index: busybox, want: []string{"linux/amd64/v3", "linux/amd64", "linux/386"},
		},
		{
			name: "arm/v7 before v6", host: "linux/amd64", platform: "linux/arm/v7",
			index: busybox, want: []string{"linux/arm/v7", "linux/arm/v6", "linux/arm/v5"},
		},
		{
			name: "arm is v7", host: "linux/amd64", platform: "linux/arm",
			index: []string{"linux/arm/v6", "linux/arm/v7"}, want: []string{"linux/arm/v7", "linux/arm/v6"},
		},
		{
			name: "arm/v6 does not run v7", host: "linux/amd64", platform: "linux/arm/v6",
			index: busybox, want: []string{"linux/arm/v6", "linux/arm/v5"},
		},
		{
			name: "arm64 runs arm", host: "linux/amd64", platform: "linux/arm64",
			index: busybox, want: []string{"linux/arm64", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"},
		},
		{
			name: "riscv64", host: "linux/amd64", platform: "linux/riscv64",
			index: busybox, want: []string{"linux/riscv64"},
		},
		{
			name: "all os.features are required", host: "linux/amd64", platform: "linux(+a+b)/amd64",
			index: []string{"linux/amd64", "linux(+a)/amd64", "linux(+a+c)/amd64", "linux(+a+b)/amd64"},
			want:  []string{"linux(+a+b)/amd64", "linux(+a)/amd64", "linux/amd64"},
		},
		{
			name: "Linux on a Windows node", host: "windows(10.0.20348)/amd64", platform: "linux/amd64",
			index: busybox, want: []string{"linux/amd64", "linux/386"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := newSet(t, tc.host, runtimeplatform.Handler{Name: "h", Platform: tc.platform, Snapshotter: "s"})
			if got := selected(set.Default().Matcher, index(t, tc.index...)); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// matchers returns matchers for handlers and nodes of many platforms.
func matchers(t testing.TB) map[string]platforms.MatchComparer {
	all := make(map[string]platforms.MatchComparer)
	for _, node := range []string{"linux/amd64", "linux/arm64", "windows(10.0.17763)/amd64", "windows(10.0.26100)/amd64", "windows/arm64"} {
		for _, platform := range []string{
			"", "linux/amd64", "linux/arm64", "linux/arm/v6", "linux(+a+b)/amd64",
			"windows/amd64", "windows(10.0.17763.4000)/amd64", "windows(10.0.20348+a)/arm64",
		} {
			for _, isolation := range []runtimeplatform.Isolation{runtimeplatform.IsolationProcess, runtimeplatform.IsolationHypervisor} {
				set, err := runtimeplatform.New("h", []runtimeplatform.Handler{
					{Name: "h", Platform: platform, Snapshotter: "s", Isolation: isolation},
				}, host(t, node))
				if err != nil {
					continue // hypervisor isolation for Linux
				}
				all[platform+" "+string(isolation)+" on "+node] = set.Default().Matcher
			}
		}
	}
	return all
}

// checkWeakOrder checks that m orders a, b and c as a sort requires: Less is asymmetric, Less and equality (neither is
// less) are transitive, and platforms that match are first.
func checkWeakOrder(t *testing.T, name string, m platforms.MatchComparer, a, b, c ocispec.Platform) {
	t.Helper()
	ab, ba := m.Less(a, b), m.Less(b, a)
	bc, cb := m.Less(b, c), m.Less(c, b)
	ac, ca := m.Less(a, c), m.Less(c, a)
	switch {
	case m.Less(a, a):
		t.Errorf("%s: %+v is less than itself", name, a)
	case ab && ba:
		t.Errorf("%s: %+v and %+v are each less than the other", name, a, b)
	case ab && bc && !ac:
		t.Errorf("%s: less is not transitive for %+v, %+v, %+v", name, a, b, c)
	case !ab && !ba && !bc && !cb && (ac || ca):
		t.Errorf("%s: equality is not transitive for %+v, %+v, %+v", name, a, b, c)
	case m.Match(a) && !m.Match(b) && !ab:
		t.Errorf("%s: %+v matches but is not less than %+v, which does not match", name, a, b)
	}
}

func TestWeakOrder(t *testing.T) {
	all := index(t,
		"linux/amd64", "linux/386", "linux/arm64", "linux/arm/v6", "linux(+a)/amd64", "linux(+c)/amd64",
		"windows/amd64", "windows/386", "windows(10.0.9200.1)/amd64", "windows(10.0.17763.999)/amd64",
		"windows(10.0.17763.1000+win32k)/amd64", "windows(10.0.17763.1000)/amd64", "windows(10.0.17763.1000)/arm64",
		"windows(10.0.20348.1+a)/amd64", "windows(10.0.20348.1)/386", "windows(x)/amd64", "windows(10.0.26100.1)/arm64",
	)
	for name, m := range matchers(t) {
		for _, a := range all {
			for _, b := range all {
				for _, c := range all {
					checkWeakOrder(t, name, m, a, b, c)
				}
			}
		}
	}
}

func FuzzWeakOrder(f *testing.F) {
	f.Add("10.0.17763.999", "10.0.17763.1000", "", uint32(0))
	f.Add("10.0.9200", "10.0.17763", "10.0", uint32(0x123456))
	f.Add("10.0.20348.2582", "10.0.26100.1", "ltsc2022", uint32(0xffffff))
	f.Add("10.0.17763.x", "10.0.17763.0", "10.0.17763", uint32(0x00ff00))
	f.Add("0.0.0", "0.0.0.1", "...", uint32(0x010203))

	all := matchers(f)
	f.Fuzz(func(t *testing.T, a, b, c string, bits uint32) {
		pa, pb, pc := fuzzed(a, bits), fuzzed(b, bits>>8), fuzzed(c, bits>>16)
		for name, m := range all {
			checkWeakOrder(t, name, m, pa, pb, pc)
		}
	})
}

// fuzzed returns one of a few platforms, selected by bits.
func fuzzed(version string, bits uint32) ocispec.Platform {
	p := ocispec.Platform{OS: "windows", OSVersion: version}
	if bits&1 != 0 {
		p.OS = "linux"
	}
	p.Architecture = []string{"amd64", "arm64", "386", "arm"}[bits>>1&3]
	p.Variant = []string{"", "v6", "v7", "v8"}[bits>>3&3]
	p.OSFeatures = [][]string{nil, {"a"}, {"a", "b"}, {"win32k"}, {"b", "a", "a"}, {"c"}, {"a", "win32k"}, {""}}[bits>>5&7]
	return p
}
