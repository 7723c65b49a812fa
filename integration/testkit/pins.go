package testkit

import (
	"strings"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// Control returns a client of the control service.
func (r *Rig) Control() api.ControlClient { return api.NewControlClient(r.Conn()) }

// Pins returns the pins of a reference by scope.
func (r *Rig) Pins(ref string) map[string]*api.Pin {
	r.T.Helper()
	resp, err := r.Control().Pins(r.Ctx, &api.PinsRequest{RefGlob: ref})
	if err != nil {
		r.T.Fatal(err)
	}
	pins := make(map[string]*api.Pin)
	for _, p := range resp.Pins {
		pins[p.Scope] = p
	}
	return pins
}

// Version pushes an App image of a version for the platform of the node and another one. It returns the digest.
func (r *Rig) Version(ref, version string) string {
	r.T.Helper()
	_, d := r.Push(ref, images.Options{Version: version}, images.HostPlatform(), "linux/arm64")
	_, d, _ = strings.Cut(d, "@")
	return d
}

// WantVersion runs a pod as kubelet does and fails the test unless its container runs a version. It returns the pod.
func (r *Rig) WantVersion(k node.KubeletPod, version string) *node.KubeletResult {
	r.T.Helper()
	res, err := r.RunAsKubelet(r.Ctx, k)
	if err != nil {
		r.T.Fatalf("a pod of %s: %v", k.Image, err)
	}
	platform := images.HostPlatform()
	if k.Handler == "arm" {
		platform = "linux/arm64"
	}
	if want := Line(images.Options{Version: version}, platform); res.Line != want {
		r.T.Errorf("a pod %v of %s for handler %q prints %q, not %q", k.Labels, k.Image, k.Handler, res.Line, want)
	}
	return res
}
