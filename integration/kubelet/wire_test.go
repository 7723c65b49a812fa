package kubelet

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// wire compares each CRI call of kubelet with what imagepin relies on (see the table in docs/kubernetes.md). A kubelet
// with other calls would break nodes in ways that are hard to detect, so this test must detect it.
type wire struct {
	*kubeletRig
	gate      bool
	sandboxes map[string]*cri.RunPodSandboxRequest // by the pod's config.seen
	given     map[string]map[string]bool           // reference → image IDs that kubelet got for it
	always    map[string]bool                      // images of pods with the policy Always
	asked     map[string]bool                      // images of pods with an ImageStatus call
	pulled    map[string]bool                      // images of pods without an ImageStatus call after their pull
	users     map[string]int                       // reference → user lookups without a CreateContainer call after them
	seen      map[string]int                       // kind of call → number of calls
	handlers  map[string]bool                      // handlers of image calls
}

// testWire checks the calls of all cases that have run.
func (r *kubeletRig) testWire(gate bool) {
	w := &wire{
		kubeletRig: r, gate: gate, sandboxes: map[string]*cri.RunPodSandboxRequest{}, given: map[string]map[string]bool{},
		always: map[string]bool{}, asked: map[string]bool{}, pulled: map[string]bool{}, users: map[string]int{}, seen: map[string]int{}, handlers: map[string]bool{},
	}
	for _, c := range r.k.Proxy.Calls("") {
		switch q := c.Request.(type) {
		case *cri.RunPodSandboxRequest:
			w.runPodSandbox(q)
		case *cri.ImageStatusRequest:
			w.imageStatus(q, c.Response.(*cri.ImageStatusResponse).GetImage().GetId())
		case *cri.PullImageRequest:
			w.pullImage(q, c.Response.(*cri.PullImageResponse).GetImageRef())
		case *cri.CreateContainerRequest:
			w.createContainer(q)
		case *cri.ListImagesRequest:
			w.seen["ListImages"]++
			if q.GetFilter() != nil {
				r.T.Errorf("ListImages: got %v, want no filter", q)
			}
		}
	}
	for k := range w.pulled {
		r.T.Errorf("no ImageStatus call for %q after its pull", k)
	}
	if gate != w.handlers[second] || gate != w.handlers[other] {
		r.T.Errorf("gate=%t: got handlers %v in image calls", gate, w.handlers)
	}
	methods := r.k.Proxy.Methods()
	for _, what := range []string{
		"RunPodSandbox", "ImageStatus for a pod", "ImageStatus for the user", "PullImage", "PullImage of an absent image", "CreateContainer", "CreateContainer's volume", "ListImages",
	} {
		if w.seen[what] == 0 {
			r.T.Errorf("no call of %s: got calls %v", what, methods)
		}
	}
	for m := range methods {
		if service, method, _ := strings.Cut(m, "/"); strings.HasSuffix(service, "ImageService") &&
			!slices.Contains([]string{"ImageStatus", "PullImage", "ListImages", "RemoveImage", "ImageFsInfo"}, method) {
			r.T.Errorf("kubelet calls %s, which the test does not know", m)
		}
	}
}

// runPodSandbox checks that the call has the handler of the pod's class, with the gate on or off.
func (w *wire) runPodSandbox(q *cri.RunPodSandboxRequest) {
	w.seen["RunPodSandbox"]++
	m := q.GetConfig()
	at := m.GetAnnotations()[node.SeenAnnotation]
	if m.GetMetadata().GetUid() == "" || at == "" {
		w.T.Errorf("RunPodSandbox has no UID or no %s: %v", node.SeenAnnotation, m)
	}
	if was := w.sandboxes[at]; was != nil && was.GetConfig().GetMetadata().GetUid() != m.GetMetadata().GetUid() {
		w.T.Errorf("two pods have %s %s", node.SeenAnnotation, at)
	}
	w.sandboxes[at] = q
	pod := w.pods[m.GetMetadata().GetName()]
	if pod == nil {
		w.T.Errorf("RunPodSandbox for an unknown pod: %v", m)
		return
	}
	class := ""
	if pod.Spec.RuntimeClassName != nil {
		class = *pod.Spec.RuntimeClassName
	}
	if q.GetRuntimeHandler() != class {
		w.T.Errorf("RunPodSandbox for pod %s: got handler %q, want %q", pod.Name, q.GetRuntimeHandler(), class)
	}
	for _, c := range pod.Spec.Containers {
		w.always[at+" "+c.Image] = w.always[at+" "+c.Image] || c.ImagePullPolicy == core.PullAlways
	}
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil && v.Image.PullPolicy == core.PullAlways {
			w.always[at+" "+v.Image.Reference] = true
		}
	}
}

// podsImage checks that an image spec has the annotations of the sandbox and, with the gate on, its handler. It returns
// the pod's config.seen.
func (w *wire) podsImage(what string, spec *cri.ImageSpec) (pod string) {
	w.seen[what]++
	pod = spec.GetAnnotations()[node.SeenAnnotation]
	sandbox := w.sandboxes[pod]
	if sandbox == nil {
		w.T.Errorf("%s without a RunPodSandbox call before it: %v", what, spec)
		return pod
	}
	if !maps.Equal(spec.GetAnnotations(), sandbox.GetConfig().GetAnnotations()) {
		w.T.Errorf("%s: got annotations %v, want those of the sandbox %v", what, spec.GetAnnotations(), sandbox.GetConfig().GetAnnotations())
	}
	want := ""
	if w.gate {
		want = sandbox.GetRuntimeHandler()
	}
	if spec.GetRuntimeHandler() != want {
		w.T.Errorf("%s: got handler %q, want %q: %v", what, spec.GetRuntimeHandler(), want, spec)
	}
	w.handlers[spec.GetRuntimeHandler()] = true
	return pod
}

func (w *wire) imageStatus(q *cri.ImageStatusRequest, id string) {
	spec := q.GetImage()
	if len(spec.GetAnnotations()) == 0 && spec.GetRuntimeHandler() == "" {
		w.seen["ImageStatus for the user"]++
		if !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage()}) || byID(spec.GetImage()) {
			w.T.Errorf("ImageStatus for the user: got %v, want only a reference", spec)
		}
		w.users[spec.GetImage()]++
		return
	}
	pod := w.podsImage("ImageStatus for a pod", spec)
	if byID(spec.GetImage()) || spec.GetUserSpecifiedImage() != "" {
		w.T.Errorf("ImageStatus for a pod: got %v, want a reference", spec)
	}
	w.asked[pod+" "+spec.GetImage()] = true
	delete(w.pulled, pod+" "+spec.GetImage())
	w.give(spec.GetImage(), id)
}

func (w *wire) pullImage(q *cri.PullImageRequest, id string) {
	spec := q.GetImage()
	pod := w.podsImage("PullImage", spec)
	if byID(spec.GetImage()) || spec.GetUserSpecifiedImage() != "" {
		w.T.Errorf("PullImage: got %v, want a reference", spec)
	}
	if image := pod + " " + spec.GetImage(); !w.asked[image] && !w.always[image] {
		w.T.Errorf("PullImage without an ImageStatus call before it and without the policy Always: %v", spec)
	} else if !w.always[image] {
		w.seen["PullImage of an absent image"]++
	}
	if sandbox := w.sandboxes[pod]; !samePod(q.GetSandboxConfig(), sandbox.GetConfig()) {
		w.T.Errorf("PullImage: got sandbox %v, want %v", q.GetSandboxConfig(), sandbox.GetConfig())
	}
	if id != "" { // it succeeded
		w.pulled[pod+" "+spec.GetImage()] = true
		w.give(spec.GetImage(), id)
	}
}

// createContainer checks that the call has an image ID that kubelet got for the reference, and that kubelet has looked
// up the reference's user.
func (w *wire) createContainer(q *cri.CreateContainerRequest) {
	w.seen["CreateContainer"]++
	spec := q.GetConfig().GetImage()
	ref := spec.GetUserSpecifiedImage()
	if !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage(), UserSpecifiedImage: ref}) || !w.given[ref][spec.GetImage()] {
		w.T.Errorf("CreateContainer: got %v, want only a reference and an image ID that kubelet got for it", spec)
	}
	if w.users[ref]--; w.users[ref] < 0 {
		w.T.Errorf("CreateContainer of %s without an ImageStatus call for its user before it", ref)
	}
	if !samePod(q.GetSandboxConfig(), w.sandboxes[q.GetSandboxConfig().GetAnnotations()[node.SeenAnnotation]].GetConfig()) {
		w.T.Errorf("CreateContainer: got sandbox %v, want that of RunPodSandbox", q.GetSandboxConfig())
	}
	for _, m := range q.GetConfig().GetMounts() {
		if v := m.GetImage(); v != nil && v.GetImage() != "" {
			w.podsImage("CreateContainer's volume", v)
			if !w.given[v.GetUserSpecifiedImage()][v.GetImage()] {
				w.T.Errorf("image volume: got %v, want an image ID that kubelet got for the reference", v)
			}
		}
	}
}

func (w *wire) give(ref, id string) {
	if w.given[ref] == nil {
		w.given[ref] = map[string]bool{}
	}
	w.given[ref][id] = true
}

func byID(image string) bool { return strings.HasPrefix(image, "sha256:") }

// samePod reports whether two configurations have the same pod UID, namespace, labels and annotations.
func samePod(a, b *cri.PodSandboxConfig) bool {
	return a != nil && b != nil && a.GetMetadata().GetUid() == b.GetMetadata().GetUid() && a.GetMetadata().GetNamespace() == b.GetMetadata().GetNamespace() &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}
