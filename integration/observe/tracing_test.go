package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc/metadata"

	"github.com/imagepin/imagepin/integration/collector"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const (
	pullCall    = "runtime.v1.ImageService/PullImage"
	sandboxCall = "runtime.v1.RuntimeService/RunPodSandbox"
	statusCall  = "runtime.v1.ImageService/ImageStatus"
)

// traced returns a context in which calls belong to a trace of the caller, as kubelet's calls do.
func traced(r *testkit.Rig, number int) (ctx context.Context, trace string) {
	trace = fmt.Sprintf("%032x", number)
	return metadata.AppendToOutgoingContext(r.Ctx, "traceparent", collector.Parent(trace)), trace
}

// TestTraces checks the spans that a node sends to a collector for the calls of a traced client.
func TestTraces(t *testing.T) {
	c := collector.New()
	t.Cleanup(c.Close)
	r := testkit.NewRig(t, node.Options{Env: c.Env(), Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	tag, digest := r.Push("repo/app:1", images.Options{}, images.HostPlatform())

	// ended waits for the span of a call, which ends after the spans below it, and returns the spans of the trace. It
	// can wait for other spans too: imagepin serve and containerd send theirs independently.
	ended := func(trace, call string, other ...string) map[string][]*otlp.Span {
		t.Helper()
		for _, span := range append(other, call) {
			r.Eventually("the span of "+span+" is sent", func() bool { return len(c.Trace(trace)[span]) > 0 })
		}
		return c.Trace(trace)
	}
	want := func(spans map[string][]*otlp.Span, wanted ...string) {
		t.Helper()
		for _, name := range wanted {
			if len(spans[name]) != 1 {
				t.Errorf("got %d spans %q, want 1, in\n%s", len(spans[name]), name, strings.Join(slices.Sorted(maps.Keys(spans)), "\n"))
			}
		}
	}

	ctx, trace := traced(r, 1)
	if _, err := r.Pull(ctx, tag, ""); err != nil {
		t.Fatal(err)
	}
	spans := ended(trace, pullCall)
	const pull, ready = pullCall + " > imagepin.pull", pullCall + " > imagepin.pull > imagepin.ready"
	want(spans, pull, pull+" > imagepin.resolve", ready,
		ready+" > imagepin.choose", ready+" > imagepin.fetch", ready+" > imagepin.record", ready+" > imagepin.visible")
	if !slices.ContainsFunc(slices.Collect(maps.Keys(spans)), func(name string) bool {
		return strings.HasPrefix(name, ready+" > imagepin.fetch > pkg.unpack.")
	}) {
		t.Errorf("containerd's unpack span is not below the fetch span:\n%s", strings.Join(slices.Sorted(maps.Keys(spans)), "\n"))
	}
	for name := range spans {
		if strings.Contains(name, statusCall) {
			t.Errorf("the poll for the image is in the trace: %s", name)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, attr := range []struct{ span, name, value string }{
		{pull, "image.ref", tag},
		{pull, "image.target", images.HostPlatform() + " on overlayfs"},
		{pull + " > imagepin.resolve", "image.ref", tag},
		{pull + " > imagepin.resolve", "image.digest", testkit.DigestIn(digest)},
		{pull + " > imagepin.resolve", "registry.host", r.Reg.Host()},
		{ready, "image.digest", testkit.DigestIn(digest)},
		{ready, "done", "fetched"},
	} {
		if got := collector.Attribute(spans[attr.span][0], attr.name); got != attr.value {
			t.Errorf("span %q: got %s = %q, want %q", attr.span, attr.name, got, attr.value)
		}
	}
	for name, all := range spans {
		for _, s := range all {
			if s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
				t.Errorf("span %q of a pull that succeeded has status %v", name, s.GetStatus())
			}
		}
	}

	ctx, trace = traced(r, 2)
	if _, err := r.Pull(ctx, r.Reg.Ref("repo/app:none"), ""); err == nil {
		t.Fatal("a tag that does not exist was pulled")
	}
	spans = ended(trace, pullCall)
	want(spans, pull, pull+" > imagepin.resolve")
	for _, name := range []string{pull, pull + " > imagepin.resolve"} {
		for _, s := range spans[name] {
			if s.GetStatus().GetCode() != otlp.Status_STATUS_CODE_ERROR || !strings.HasPrefix(s.GetStatus().GetMessage(), "CannotPullImageManifest: ") {
				t.Errorf("span %q of a pull that failed has status %v", name, s.GetStatus())
			}
		}
	}

	// imagepin unpacks the sandbox image for the handler, and then forwards the call to containerd's own CRI service.
	ctx, trace = traced(r, 3)
	p, err := r.RunPod(ctx, node.PodOptions{Handler: "native"})
	if err != nil {
		t.Fatal(err)
	}
	upstream := sandboxCall
	if r.Options().Mode == node.Serve {
		upstream += " > " + sandboxCall + " > " + sandboxCall // imagepin's call to containerd, and containerd's own span
	}
	spans = ended(trace, sandboxCall, sandboxCall+" > imagepin.pull > imagepin.ready", upstream+" > cri.sandbox.run")
	want(spans, sandboxCall+" > imagepin.pull > imagepin.ready", upstream, upstream+" > cri.sandbox.run")
	r.MustRemovePod(p)
}
