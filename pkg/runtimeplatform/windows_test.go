package runtimeplatform_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// nanoserver is an index as Microsoft publishes it: one manifest per build and architecture, unordered. It also has
// versions whose order differs from that of their texts.
var nanoserver = []string{
	"windows(10.0.17763.999)/amd64",
	"windows(10.0.26100.2894)/arm64",
	"windows(10.0.20348.2582)/amd64",
	"windows(10.0.14393.7428)/amd64",
	"linux/amd64",
	"windows(10.0.9200.17609)/amd64",
	"windows(10.0.26100.2894)/amd64",
	"windows(10.0.17763.1000)/amd64",
	"windows/amd64",
	"windows(10.0.20348.10000)/amd64",
	"windows(10.0.17763.6659)/arm64",
	"windows(10.0.26100.863)/amd64",
}

func TestWindows(t *testing.T) {
	const (
		none     = "windows/amd64"
		win8     = "windows(10.0.9200.17609)/amd64"
		rs1      = "windows(10.0.14393.7428)/amd64"
		rs5      = "windows(10.0.17763.1000)/amd64"
		rs5old   = "windows(10.0.17763.999)/amd64"
		ltsc2022 = "windows(10.0.20348.10000)/amd64"
		ltscOld  = "windows(10.0.20348.2582)/amd64"
		ltsc2025 = "windows(10.0.26100.2894)/amd64"
		ltsc25o  = "windows(10.0.26100.863)/amd64"
		armRS5   = "windows(10.0.17763.6659)/arm64"
		arm2025  = "windows(10.0.26100.2894)/arm64"
	)
	const (
		process    = runtimeplatform.IsolationProcess
		hypervisor = runtimeplatform.IsolationHypervisor
	)
	for _, tc := range []struct {
		name, host, platform string
		isolation            runtimeplatform.Isolation
		target               string
		native               bool
		want                 []string
	}{
		{
			name: "2016 node", host: "windows(10.0.14393)/amd64",
			target: "windows(10.0.14393)/amd64", native: true,
			want: []string{rs1, none},
		},
		{
			name: "2019 node, newest revision", host: "windows(10.0.17763)/amd64", isolation: process,
			target: "windows(10.0.17763)/amd64", native: true,
			want: []string{rs5, rs5old, none},
		},
		{
			name: "2022 node", host: "windows(10.0.20348)/amd64",
			target: "windows(10.0.20348)/amd64", native: true,
			want: []string{ltsc2022, ltscOld, none},
		},
		{
			name: "2025 node runs 2022", host: "windows(10.0.26100)/amd64",
			target: "windows(10.0.26100)/amd64", native: true,
			want: []string{ltsc2025, ltsc25o, ltsc2022, ltscOld, none},
		},
		{
			name: "platform without version is the node's", host: "windows(10.0.17763)/amd64", platform: "windows/amd64",
			target: "windows(10.0.17763)/amd64", native: true,
			want: []string{rs5, rs5old, none},
		},
		{
			name: "other architecture has the node's version", host: "windows(10.0.26100)/amd64", platform: "windows/arm64",
			target: "windows(10.0.26100)/arm64",
			want:   []string{arm2025},
		},
		{
			name: "handler has a version", host: "windows(10.0.26100)/amd64", platform: "windows(10.0.17763)/amd64",
			target: "windows(10.0.17763)/amd64",
			want:   []string{rs5, rs5old, none},
		},
		{
			name: "revision of the handler is ignored", host: "linux/amd64", platform: "windows(10.0.17763.1)/amd64",
			target: "windows(10.0.17763.1)/amd64",
			want:   []string{rs5, rs5old, none},
		},
		{
			name: "2022 on a Linux node", host: "linux/amd64", platform: "windows(10.0.20348)/amd64",
			target: "windows(10.0.20348)/amd64",
			want:   []string{ltsc2022, ltscOld, none},
		},
		{
			name: "arm64 of 2019 on a Linux node", host: "linux/amd64", platform: "windows(10.0.17763)/arm64",
			target: "windows(10.0.17763)/arm64",
			want:   []string{armRS5},
		},
		{
			name: "no version", host: "linux/amd64", platform: "windows/amd64",
			target: "windows/amd64",
			want:   []string{ltsc2025, ltsc25o, ltsc2022, ltscOld, rs5, rs5old, rs1, win8, none},
		},
		{
			name: "hypervisor on a 2016 node", host: "windows(10.0.14393)/amd64", isolation: hypervisor,
			target: "windows(10.0.14393)/amd64@hypervisor",
			want:   []string{rs1, win8, none},
		},
		{
			name: "hypervisor on a 2019 node", host: "windows(10.0.17763)/amd64", isolation: hypervisor,
			target: "windows(10.0.17763)/amd64@hypervisor",
			want:   []string{rs5, rs5old, rs1, win8, none},
		},
		{
			name: "hypervisor on a build between releases", host: "windows(10.0.20347)/amd64", platform: "windows/amd64", isolation: hypervisor,
			target: "windows(10.0.20347)/amd64@hypervisor",
			want:   []string{rs5, rs5old, rs1, win8, none},
		},
		{
			name: "hypervisor on a 2025 node", host: "windows(10.0.26100)/amd64", isolation: hypervisor,
			target: "windows(10.0.26100)/amd64@hypervisor",
			want:   []string{ltsc2025, ltsc25o, ltsc2022, ltscOld, rs5, rs5old, rs1, win8, none},
		},
		{
			name: "hypervisor with its own version", host: "windows(10.0.26100)/amd64", platform: "windows(10.0.20348.1)/amd64", isolation: hypervisor,
			target: "windows(10.0.20348.1)/amd64@hypervisor",
			want:   []string{ltsc2022, ltscOld, rs5, rs5old, rs1, win8, none},
		},
		{
			name: "hypervisor, arm64", host: "windows(10.0.26100)/arm64", isolation: hypervisor,
			target: "windows(10.0.26100)/arm64@hypervisor",
			want:   []string{arm2025, armRS5},
		},
		{
			name: "hypervisor, no version", host: "linux/amd64", platform: "windows/amd64", isolation: hypervisor,
			target: "windows/amd64@hypervisor",
			want:   []string{ltsc2025, ltsc25o, ltsc2022, ltscOld, rs5, rs5old, rs1, win8, none},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rt := newSet(t, tc.host, runtimeplatform.Handler{Name: "h", Platform: tc.platform, Snapshotter: "windows", Isolation: tc.isolation}).Default()
			if rt.Target.Platform != tc.target || rt.Native != tc.native {
				t.Errorf("got %s, native %t; want %s, native %t", rt.Target.Platform, rt.Native, tc.target, tc.native)
			}
			manifests := index(t, nanoserver...)
			for range 20 {
				if got := selected(rt.Matcher, manifests); !slices.Equal(got, tc.want) {
					t.Fatalf("got\n%q, want\n%q", got, tc.want)
				}
				rand.Shuffle(len(manifests), func(i, j int) { manifests[i], manifests[j] = manifests[j], manifests[i] })
			}
		})
	}
}

// TestIsolationDistinguishesTargets checks that two isolations of a platform are two targets, because they select
// different manifests.
func TestIsolationDistinguishesTargets(t *testing.T) {
	set := newSet(t, "windows(10.0.20348)/amd64",
		runtimeplatform.Handler{Name: "process", Snapshotter: "windows"},
		runtimeplatform.Handler{Name: "hyperv", Snapshotter: "windows", Isolation: runtimeplatform.IsolationHypervisor},
		runtimeplatform.Handler{Name: "explicit", Platform: "windows(10.0.20348)/amd64", Snapshotter: "windows", Isolation: runtimeplatform.IsolationProcess},
	)
	want := []runtimeplatform.Target{
		{Platform: "windows(10.0.20348)/amd64", Snapshotter: "windows"},
		{Platform: "windows(10.0.20348)/amd64@hypervisor", Snapshotter: "windows"},
	}
	if got := set.Targets(); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if got, want := set.Handlers(want[0]), []string{"explicit", "process"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWindowsOrder(t *testing.T) {
	for _, tc := range []struct {
		name, platform string
		isolation      runtimeplatform.Isolation
		index, want    []string
	}{
		{
			name: "architecture before version", platform: "windows(10.0.26100)/amd64",
			index: []string{"windows(10.0.26100.9)/386", "windows(10.0.20348.1)/amd64"},
			want:  []string{"windows(10.0.20348.1)/amd64", "windows(10.0.26100.9)/386"},
		},
		{
			name: "features if the versions are equal", platform: "windows(10.0.17763+a)/amd64",
			index: []string{"windows(10.0.17763.1)/amd64", "windows(10.0.17763.1+a)/amd64", "windows(10.0.17763.2)/amd64", "windows(10.0.17763.3+b)/amd64"},
			want:  []string{"windows(10.0.17763.2)/amd64", "windows(10.0.17763.1+a)/amd64", "windows(10.0.17763.1)/amd64"},
		},
		{
			name: "win32k is not required", platform: "windows(10.0.17763)/amd64",
			index: []string{"windows(10.0.17763.1+win32k)/amd64"},
			want:  []string{"windows(10.0.17763.1+win32k)/amd64"},
		},
		{
			name: "invalid version", platform: "windows(10.0.17763)/amd64",
			index: []string{"windows(1809)/amd64", "windows/amd64"},
			want:  []string{"windows/amd64"},
		},
		{
			name: "invalid version, hypervisor", platform: "windows(10.0.17763)/amd64", isolation: runtimeplatform.IsolationHypervisor,
			index: []string{"windows(1809)/amd64", "windows/amd64"},
			want:  []string{"windows/amd64"},
		},
		{
			name: "invalid version ranks last if any matches", platform: "windows/amd64",
			index: []string{"windows(1809)/amd64", "windows(10.0.9200)/amd64"},
			want:  []string{"windows(10.0.9200)/amd64", "windows(1809)/amd64"},
		},
		{
			name: "invalid revision counts as 0", platform: "windows(10.0.17763)/amd64", isolation: runtimeplatform.IsolationHypervisor,
			index: []string{"windows(10.0.17763.x)/amd64", "windows(10.0.17763.1)/amd64"},
			want:  []string{"windows(10.0.17763.1)/amd64", "windows(10.0.17763.x)/amd64"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rt := newSet(t, "linux/amd64", runtimeplatform.Handler{Name: "h", Platform: tc.platform, Snapshotter: "s", Isolation: tc.isolation}).Default()
			if got := selected(rt.Matcher, index(t, tc.index...)); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestWindowsNodeMatchesAsContainerd checks that the matcher of a native handler matches the same platforms as
// containerd's matcher.
func TestWindowsNodeMatchesAsContainerd(t *testing.T) {
	h := host(t, "windows(10.0.26100)/amd64")
	rt := newSet(t, "windows(10.0.26100)/amd64", runtimeplatform.Handler{Name: "h", Snapshotter: "windows"}).Default()
	for _, p := range append(index(t, nanoserver...), index(t, "windows(10.0.26100.1)/386", "windows(10.0.26200.1)/amd64")...) {
		if got, want := rt.Matcher.Match(p), h.Matcher.Match(p); got != want {
			t.Errorf("%s: got %t, want %t as containerd's matcher", platforms.FormatAll(p), got, want)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	manifests := index(b, nanoserver...)
	benchmarkWindows(b, func(m platforms.MatchComparer) {
		for _, p := range manifests {
			m.Match(p)
		}
	})
}

func BenchmarkLess(b *testing.B) {
	manifests := index(b, nanoserver...)
	benchmarkWindows(b, func(m platforms.MatchComparer) {
		for i := range manifests[1:] {
			m.Less(manifests[i], manifests[i+1])
		}
	})
}

// BenchmarkSelect measures a selection from an index as in a pull.
func BenchmarkSelect(b *testing.B) {
	manifests := index(b, nanoserver...)
	matching := make([]ocispec.Platform, 0, len(manifests))
	benchmarkWindows(b, func(m platforms.MatchComparer) {
		matching = matching[:0]
		for _, p := range manifests {
			if m.Match(p) {
				matching = append(matching, p)
			}
		}
		slices.SortStableFunc(matching, order(m))
	})
}

func benchmarkWindows(b *testing.B, run func(platforms.MatchComparer)) {
	for _, isolation := range []runtimeplatform.Isolation{runtimeplatform.IsolationProcess, runtimeplatform.IsolationHypervisor} {
		b.Run(string(isolation), func(b *testing.B) {
			m := newSet(b, "windows(10.0.26100)/amd64", runtimeplatform.Handler{Name: "h", Snapshotter: "windows", Isolation: isolation}).Default().Matcher
			b.ReportAllocs()
			for b.Loop() {
				run(m)
			}
		})
	}
}
