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

// wire is what kubelet has sent, looked at call by call against what imagepin relies on (docs/kubernetes.md has it as a table). A
// kubelet that does otherwise breaks the node in ways that are hard to see, so it has to be seen here.
type wire struct {
	*kubeletRig
	gate      bool
	sandboxes map[string]*cri.RunPodSandboxRequest // by when kubelet saw the pod
	given     map[string]map[string]bool           // image IDs that kubelet was given for a reference
	always    map[string]bool                      // images of pods that are pulled without asking what is there
	asked     map[string]bool                      // images of pods that kubelet has asked for
	pulled    map[string]bool                      // and those not asked for again after it
	users     map[string]int                       // references whose user was looked up, and no container made since
	seen      map[string]int                       // how often each kind of call was found
	handlers  map[string]bool
}

// testWire looks at the calls of all cases that have run.
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
				r.T.Errorf("ListImages has a filter: %v", q)
			}
		}
	}
	for k := range w.pulled {
		r.T.Errorf("kubelet did not ask for %q again after it was pulled", k)
	}
	if gate != w.handlers[second] || gate != w.handlers[other] {
		r.T.Errorf("with the gate at %t the handlers of image calls were %v", gate, w.handlers)
	}
	methods := r.k.Proxy.Methods()
	for _, what := range []string{
		"RunPodSandbox", "ImageStatus for a pod", "ImageStatus for the user", "PullImage", "PullImage of what is absent", "CreateContainer", "CreateContainer's volume", "ListImages",
	} {
		if w.seen[what] == 0 {
			r.T.Errorf("kubelet never called %s; the calls were %v", what, methods)
		}
	}
	for m := range methods {
		if service, method, _ := strings.Cut(m, "/"); strings.HasSuffix(service, "ImageService") &&
			!slices.Contains([]string{"ImageStatus", "PullImage", "ListImages", "RemoveImage", "ImageFsInfo"}, method) {
			r.T.Errorf("kubelet calls %s, which it did not when its calls were looked at", m)
		}
	}
}

// runPodSandbox: the handler of the pod's class, whatever the gate.
func (w *wire) runPodSandbox(q *cri.RunPodSandboxRequest) {
	w.seen["RunPodSandbox"]++
	m := q.GetConfig()
	at := m.GetAnnotations()[node.SeenAnnotation]
	if m.GetMetadata().GetUid() == "" || at == "" {
		w.T.Errorf("RunPodSandbox has no UID or no %s: %v", node.SeenAnnotation, m)
	}
	if was := w.sandboxes[at]; was != nil && was.GetConfig().GetMetadata().GetUid() != m.GetMetadata().GetUid() {
		w.T.Errorf("two pods were seen at %s", at)
	}
	w.sandboxes[at] = q
	pod := w.pods[m.GetMetadata().GetName()]
	if pod == nil {
		w.T.Errorf("RunPodSandbox is for a pod that is not known: %v", m)
		return
	}
	class := ""
	if pod.Spec.RuntimeClassName != nil {
		class = *pod.Spec.RuntimeClassName
	}
	if q.GetRuntimeHandler() != class {
		w.T.Errorf("RunPodSandbox for pod %s has handler %q, not %q", pod.Name, q.GetRuntimeHandler(), class)
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

// podsImage: the annotations of the sandbox, and with the gate its handler. It returns what stands for the pod.
func (w *wire) podsImage(what string, spec *cri.ImageSpec) (pod string) {
	w.seen[what]++
	pod = spec.GetAnnotations()[node.SeenAnnotation]
	sandbox := w.sandboxes[pod]
	if sandbox == nil {
		w.T.Errorf("%s is of no sandbox that was made before: %v", what, spec)
		return pod
	}
	if !maps.Equal(spec.GetAnnotations(), sandbox.GetConfig().GetAnnotations()) {
		w.T.Errorf("%s has annotations %v, its sandbox %v", what, spec.GetAnnotations(), sandbox.GetConfig().GetAnnotations())
	}
	want := ""
	if w.gate {
		want = sandbox.GetRuntimeHandler()
	}
	if spec.GetRuntimeHandler() != want {
		w.T.Errorf("%s has handler %q, not %q: %v", what, spec.GetRuntimeHandler(), want, spec)
	}
	w.handlers[spec.GetRuntimeHandler()] = true
	return pod
}

func (w *wire) imageStatus(q *cri.ImageStatusRequest, id string) {
	spec := q.GetImage()
	if len(spec.GetAnnotations()) == 0 && spec.GetRuntimeHandler() == "" {
		w.seen["ImageStatus for the user"]++
		if !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage()}) || byID(spec.GetImage()) {
			w.T.Errorf("ImageStatus for the user is not of a reference and nothing else: %v", spec)
		}
		w.users[spec.GetImage()]++
		return
	}
	pod := w.podsImage("ImageStatus for a pod", spec)
	if byID(spec.GetImage()) || spec.GetUserSpecifiedImage() != "" {
		w.T.Errorf("ImageStatus for a pod is not of a reference: %v", spec)
	}
	w.asked[pod+" "+spec.GetImage()] = true
	delete(w.pulled, pod+" "+spec.GetImage())
	w.give(spec.GetImage(), id)
}

func (w *wire) pullImage(q *cri.PullImageRequest, id string) {
	spec := q.GetImage()
	pod := w.podsImage("PullImage", spec)
	if byID(spec.GetImage()) || spec.GetUserSpecifiedImage() != "" {
		w.T.Errorf("PullImage is not of a reference: %v", spec)
	}
	if image := pod + " " + spec.GetImage(); !w.asked[image] && !w.always[image] {
		w.T.Errorf("PullImage without an ImageStatus before it, although the policy is not Always: %v", spec)
	} else if !w.always[image] {
		w.seen["PullImage of what is absent"]++
	}
	if sandbox := w.sandboxes[pod]; !samePod(q.GetSandboxConfig(), sandbox.GetConfig()) {
		w.T.Errorf("PullImage has sandbox %v, not %v", q.GetSandboxConfig(), sandbox.GetConfig())
	}
	if id != "" { // it succeeded
		w.pulled[pod+" "+spec.GetImage()] = true
		w.give(spec.GetImage(), id)
	}
}

// createContainer: the image by the ID that kubelet was given for the reference, whose user it has looked up.
func (w *wire) createContainer(q *cri.CreateContainerRequest) {
	w.seen["CreateContainer"]++
	spec := q.GetConfig().GetImage()
	ref := spec.GetUserSpecifiedImage()
	if !proto.Equal(spec, &cri.ImageSpec{Image: spec.GetImage(), UserSpecifiedImage: ref}) || !w.given[ref][spec.GetImage()] {
		w.T.Errorf("CreateContainer is not by the ID that was given for a reference, and nothing else: %v", spec)
	}
	if w.users[ref]--; w.users[ref] < 0 {
		w.T.Errorf("CreateContainer of %s without an ImageStatus for its user before", ref)
	}
	if !samePod(q.GetSandboxConfig(), w.sandboxes[q.GetSandboxConfig().GetAnnotations()[node.SeenAnnotation]].GetConfig()) {
		w.T.Errorf("CreateContainer has another sandbox than was made: %v", q.GetSandboxConfig())
	}
	for _, m := range q.GetConfig().GetMounts() {
		if v := m.GetImage(); v != nil && v.GetImage() != "" {
			w.podsImage("CreateContainer's volume", v)
			if !w.given[v.GetUserSpecifiedImage()][v.GetImage()] {
				w.T.Errorf("an image volume is not by the ID that was given for a reference: %v", v)
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

// samePod says that two configurations are of one pod: what tells of which, and for which revision of what.
func samePod(a, b *cri.PodSandboxConfig) bool {
	return a != nil && b != nil && a.GetMetadata().GetUid() == b.GetMetadata().GetUid() && a.GetMetadata().GetNamespace() == b.GetMetadata().GetNamespace() &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}
