package pins

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestFailedPullPinsNothing checks that a first pull that fails before the target's manifest is read makes no pin. The
// next pull pins the digest that the tag has by then.
func TestFailedPullPinsNothing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: testkit.ConsistencyRules, Handlers: testkit.OtherTargets})
	v := testkit.NewVerifier(t, r.Node)
	refused := testkit.Failure{Name: "ImageVerificationFailed", Code: codes.PermissionDenied, Prefix: "SignatureValidationFailed"}
	for _, test := range []struct {
		name    string
		handler string
		// missing reports whether the registry does not have a manifest of an index.
		missing func(manifest, index string) bool
		refuse  bool
		want    testkit.Failure
	}{
		{name: "no-platform", handler: "arm", want: testkit.NoMatchingPlatform},
		{name: "no-index", missing: func(d, index string) bool { return d == index }, want: testkit.ImageIncomplete},
		{name: "no-manifest", missing: func(d, index string) bool { return d != index }, want: testkit.ImageIncomplete},
		{name: "refused", refuse: true, want: refused},
	} {
		for consistency, scope := range map[string]string{"node": "node", "workload": "workload/shop/pod-template-hash=r1"} {
			t.Run(test.name+"/"+consistency, func(t *testing.T) {
				r := r.In(t)
				name := consistency + "/" + test.name + ":v1"
				ref, pod := r.Reg.Ref(name), &node.Pod{Config: r.PodConfig(revision("shop", "pod-template-hash", "r1"))}
				pull := func() error {
					_, err := r.PullWith(r.Ctx, ref, node.PullOptions{Handler: test.handler, Pod: pod})
					return err
				}
				index := testkit.Push(t, r.Reg, name, testkit.AppIndex(t, images.Options{Version: name}, images.HostPlatform())).String()
				if test.missing != nil {
					r.Reg.SetFault(registry.FaultIf(registry.Fault{Status: 404}, registry.Is("GET", registry.Manifest),
						func(q registry.Request) bool { return test.missing(q.Reference, index) }))
				}
				if test.refuse {
					v.Refuse(true)
				}
				test.want.Check(t, pull(), ref, testkit.TargetOf(test.handler))
				wantPins(r, ref, map[string]string{})

				r.Reg.SetFault(nil)
				if test.refuse {
					v.Refuse(false)
				}
				next := r.Version(name, "next "+name)
				if err := pull(); err != nil {
					t.Error(err)
				}
				wantPins(r, ref, map[string]string{scope: next})
			})
		}
	}
}
