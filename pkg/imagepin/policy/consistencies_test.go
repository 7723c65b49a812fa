package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestConsistencies parses annotations, and asks for references.
func TestConsistencies(t *testing.T) {
	for text, want := range map[string]map[string]Consistency{ // empty is none
		"off": {"docker.io/library/app:1": Off, "registry.example/app:1": Off},
		"registry.example/mesh/*:*=off": {
			"registry.example/mesh/proxy:v1": Off, "registry.example/app:1": "", "registry.example/mesh/deep/proxy:v1": "",
		},
		"workload, **/proxy:*=off": {"registry.example/mesh/proxy:v1": Off, "registry.example/app:1": Workload},
		"**/proxy:*=off,workload":  {"registry.example/mesh/proxy:v1": Off, "registry.example/app:1": Workload},
		" **/a:* = node ,\n**/a:1=off , **/b:*=workload": {
			"registry.example/a:1": Node, "registry.example/b:1": Workload, "registry.example/c:1": "", // the first one wins
		},
		"docker.io/library/busybox:latest=node": {"docker.io/library/busybox:latest": Node, "docker.io/library/busybox:1": ""},
	} {
		c, err := ParseConsistencies(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		for ref, consistency := range want {
			if got, ok := c.Of(ref); got != consistency || ok != (consistency != "") {
				t.Errorf("%q for %s: got %q, %v, want %q", text, ref, got, ok, consistency)
			}
		}
	}
}

// TestInvalidConsistencies checks the errors: each names the item, and is bounded.
func TestInvalidConsistencies(t *testing.T) {
	for text, want := range map[string]string{
		"":                          `version-consistency "": must be one of "off", "node", "workload"`,
		"Off":                       `"Off": must be one of`,
		"off,":                      `"": must be one of`,
		"off, node":                 `"node": is the second one for all images of the pod`,
		"busybox=off":               `"busybox=off": can never match`,
		"=off":                      `"=off": is empty`,
		"**=":                       `"**=": must be one of`,
		"**=off=node":               `"**=off=node": must be one of`,
		"**=off **=node":            `"**=off **=node": must be one of`,
		"workload,**/A:*=on":        `"**/A:*=on": must be one of`,
		"registry.example/*=off":    "", // has no tag that it cannot match
		strings.Repeat("x", 64<<10): `"xxxxxxxxxxxxxxxx…": has 65536 bytes, and a list has at most 1024`,
	} {
		_, err := ParseConsistencies(text)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		var known *Error
		if !errors.As(err, &known) || !errdefs.IsInvalidArgument(err) || known.Key != ConsistencyAnnotation || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100q: got %v, want %s", text, err, want)
		}
		if err != nil && len(err.Error()) > 4<<10 {
			t.Errorf("%.100q: the error has %d bytes", text, len(err.Error()))
		}
	}
}

// TestPodOptsImagesOut checks which images of a pod an annotation applies to, and when it is ignored.
func TestPodOptsImagesOut(t *testing.T) {
	p, err := New(Rule{Behavior: Default, Consistency: Workload}, []Rule{
		{Match: "open.io/**", AllowPodOverride: true}, {Match: "node.io/**", Consistency: Node, AllowPodOverride: true},
	}, []string{"pod-template-hash"})
	if err != nil {
		t.Fatal(err)
	}
	const revision = Scope("workload/shop/pod-template-hash=1")
	for text, want := range map[string]map[string]Scope{
		"**/proxy:*=off":          {"open.io/proxy:1": "", "open.io/app:1": revision, "node.io/proxy:1": "", "node.io/app:1": NodeScope},
		"node, **/proxy:*=off":    {"open.io/proxy:1": "", "open.io/app:1": NodeScope},
		"node.io/*:*=workload":    {"open.io/app:1": revision, "node.io/app:1": revision},
		"off, open.io/app:*=node": {"open.io/app:1": NodeScope, "node.io/app:1": ""},
	} {
		pod := Pod{Namespace: "shop", Labels: map[string]string{"pod-template-hash": "1"}, Annotations: map[string]string{ConsistencyAnnotation: text}}
		for ref, scope := range want {
			if d, ignored := p.Decide(ref, pod); d.Scope != scope || len(ignored) > 0 {
				t.Errorf("%q for %s: got scope %q, ignored %q, want %q", text, ref, d.Scope, ignored, scope)
			}
		}
		matches := text != "node.io/*:*=workload"
		if d, ignored := p.Decide("shut.io/proxy:1", pod); d.Scope != revision || slices.Contains(ignored, ConsistencyAnnotation) != matches {
			t.Errorf("%q, not allowed: got scope %q, ignored %q", text, d.Scope, ignored)
		}
	}
	invalid := Pod{Namespace: "shop", Annotations: map[string]string{ConsistencyAnnotation: "**/proxy:*=off,never"}}
	if d, ignored := p.Decide("node.io/proxy:1", invalid); d.Scope != NodeScope || !slices.Equal(ignored, []string{ConsistencyAnnotation}) {
		t.Errorf("invalid: got scope %q, ignored %q", d.Scope, ignored)
	}
}

func FuzzParseConsistencies(f *testing.F) {
	for _, text := range []string{"off", "workload, **/proxy:*=off", "=", ",", "**=off,**=node"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConsistencies(text)
		if got, ok := c.Of("docker.io/library/app:1"); err != nil && ok || ok != (got != "") {
			t.Errorf("got %q, %v for an annotation with the error %v", got, ok, err)
		}
	})
}

// BenchmarkConsistencies parses the longest annotation, as for each call of a pod that has it.
func BenchmarkConsistencies(b *testing.B) {
	text := strings.Repeat("registry.example/mesh/*?*?*?*?/proxy:*=off,", maxConsistencies)[:maxConsistencies-1]
	text = text[:strings.LastIndex(text, ",")]
	for b.Loop() {
		c, err := ParseConsistencies(text)
		if err != nil {
			b.Fatal(err)
		}
		c.Of("registry.example/mesh/other/proxy-of-the-node:v1")
	}
}
