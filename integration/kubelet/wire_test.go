package kubelet

import (
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// testWire looks at what kubelet has sent, call by call, against what imagepin relies on (docs/kubernetes.md has it as a table).
// A kubelet that does otherwise breaks the node in ways that are hard to see, so it has to be seen here.
func (r *rig) testWire(gate bool) {
	given := map[string]bool{} // image IDs that kubelet was given
	seen := map[string]int{}   // how often each kind of call was found
	handlers := map[string]bool{}
	strict := func(what string, spec *cri.ImageSpec) {
		seen[what]++
		if spec.GetAnnotations()[node.SeenAnnotation] == "" {
			r.t.Errorf("%s carries no %s: %v", what, node.SeenAnnotation, spec)
		}
		if h := spec.GetRuntimeHandler(); h != "" && !gate {
			r.t.Errorf("%s names handler %s with the gate off", what, h)
		} else {
			handlers[h] = true
		}
	}
	for _, c := range r.k.Proxy.Calls("") {
		switch q := c.Request.(type) {
		case *cri.RunPodSandboxRequest:
			seen["RunPodSandbox"]++
			if m := q.GetConfig(); m.GetMetadata().GetUid() == "" || m.GetAnnotations()[node.SeenAnnotation] == "" {
				r.t.Errorf("RunPodSandbox has no UID or no %s: %v", node.SeenAnnotation, m)
			}
		case *cri.ImageStatusRequest:
			spec := q.GetImage()
			given[c.Response.(*cri.ImageStatusResponse).GetImage().GetId()] = true
			if len(spec.GetAnnotations()) > 0 {
				strict("ImageStatus for a pod", spec)
				continue
			}
			seen["ImageStatus for the user"]++
			if spec.GetRuntimeHandler() != "" {
				r.t.Errorf("ImageStatus for the user names a handler: %v", spec)
			}
		case *cri.PullImageRequest:
			strict("PullImage", q.GetImage())
			given[c.Response.(*cri.PullImageResponse).GetImageRef()] = true
			if q.GetSandboxConfig().GetMetadata().GetUid() == "" {
				r.t.Errorf("PullImage has no sandbox: %v", q)
			}
		case *cri.CreateContainerRequest:
			seen["CreateContainer"]++
			spec := q.GetConfig().GetImage()
			if spec.GetRuntimeHandler() != "" || !given[spec.GetImage()] || spec.GetUserSpecifiedImage() == "" {
				r.t.Errorf("CreateContainer is not by the ID that was given for a reference, without a handler: %v", spec)
			}
			for _, m := range q.GetConfig().GetMounts() {
				if v := m.GetImage(); v.GetImage() != "" {
					strict("CreateContainer's volume", v)
					if !strings.HasPrefix(v.GetImage(), "sha256:") || v.GetUserSpecifiedImage() == "" {
						r.t.Errorf("an image volume is not by ID for a reference: %v", v)
					}
				}
			}
		case *cri.ListImagesRequest:
			seen["ListImages"]++
			if q.GetFilter().GetImage().GetImage() != "" {
				r.t.Errorf("ListImages has a filter: %v", q)
			}
		}
	}
	if gate != handlers[second] || gate != handlers[other] {
		r.t.Errorf("with the gate at %t the handlers of image calls were %v", gate, handlers)
	}
	for _, what := range []string{
		"RunPodSandbox", "ImageStatus for a pod", "ImageStatus for the user", "PullImage", "CreateContainer", "CreateContainer's volume",
	} {
		if seen[what] == 0 {
			r.t.Errorf("kubelet never called %s; the calls were %v", what, r.k.Proxy.Methods())
		}
	}
	if m := r.k.Proxy.Methods(); m["ListImages"]+m["StreamImages"] == 0 {
		r.t.Errorf("kubelet never listed images; the calls were %v", m)
	}
}
