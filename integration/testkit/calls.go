package testkit

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// HandlerAnnotation names the handler of an image call. Clients without the field of the CRI use it.
const HandlerAnnotation = "io.containerd.cri.runtime-handler"

// Call describes for which handler and pod an image call is.
type Call struct {
	Handler     string
	Annotations map[string]string
	Sandbox     *cri.PodSandboxConfig
}

// SeenAnnotations returns the annotation of the pod sandbox that kubelet passes in an image call.
func SeenAnnotations(p *node.Pod) map[string]string {
	return map[string]string{node.SeenAnnotation: p.Config.Annotations[node.SeenAnnotation]}
}

// PullAs pulls an image and returns its reference.
func (r *Rig) PullAs(ref string, c Call) (string, error) {
	res, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: ref, RuntimeHandler: c.Handler, Annotations: c.Annotations}, SandboxConfig: c.Sandbox,
	})
	return res.GetImageRef(), err
}

// StatusAs returns the ID of an image, or "".
func (r *Rig) StatusAs(ref string, c Call) string {
	r.T.Helper()
	res, err := r.Images().ImageStatus(r.Ctx, &cri.ImageStatusRequest{
		Image: &cri.ImageSpec{Image: ref, RuntimeHandler: c.Handler, Annotations: c.Annotations},
	})
	if err != nil {
		r.T.Fatalf("ImageStatus %s: %v", ref, err)
	}
	return res.GetImage().GetId()
}
