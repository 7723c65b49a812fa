package cri

import (
	"cmp"
	"context"
	"maps"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// podUpstream has the pods of a node, with their containers and the image volumes of these.
type podUpstream struct {
	runtime.RuntimeServiceClient
	sandboxes  *fakeSandboxes
	containers []*runtime.Container
	volumes    map[string]*runtime.ImageSpec // by container
}

func (u *podUpstream) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: u.sandboxes.sandboxes}, nil
}

func (u *podUpstream) ListContainers(_ context.Context, r *runtime.ListContainersRequest, _ ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	resp := &runtime.ListContainersResponse{}
	for _, c := range u.containers {
		if c.GetPodSandboxId() == r.GetFilter().GetPodSandboxId() {
			resp.Containers = append(resp.Containers, c)
		}
	}
	return resp, nil
}

func (u *podUpstream) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest, _ ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	s := &runtime.ContainerStatus{Id: r.GetContainerId()}
	if volume := u.volumes[r.GetContainerId()]; volume != nil {
		s.Mounts = []*runtime.Mount{{HostPath: "/volume", Image: volume}}
	}
	return &runtime.ContainerStatusResponse{Status: s}, nil
}

// run adds an exited container of a revision's pod with a version of the image.
func (u *podUpstream) run(revision, id string, v version, annotations map[string]string) {
	u.containers = append(u.containers, &runtime.Container{
		Id: id, PodSandboxId: "sandbox-" + revision, CreatedAt: int64(len(u.containers) + 1), State: runtime.ContainerState_CONTAINER_EXITED,
		Image:   &runtime.ImageSpec{Image: v.id.String(), UserSpecifiedImage: pinnedTag, Annotations: annotations},
		ImageId: v.id.String(),
	})
}

// newResolvingNode returns a node whose rule resolves the tags of new revisions. It has two versions, the tag is the second.
func newResolvingNode(t *testing.T) (p *pinnedNode, u *podUpstream, v1, v2 version) {
	t.Helper()
	p = newPinnedNode(t, policy.Workload)
	rules, err := policy.New(policy.Rule{
		Behavior: policy.Default, Consistency: policy.Workload, NewRevision: policy.FromRegistry,
	}, nil, []string{"pod-template-hash"})
	noError(t, err)
	p.policy = ctdtest.Always(rules)
	p.decider = decide.New(decide.Config{
		Policy: p.policy, Pins: p.pins, Images: p.Store.(*store.Store), Cluster: func() decide.Cluster { return p.cluster },
	})
	u = &podUpstream{sandboxes: &p.upstream, volumes: map[string]*runtime.ImageSpec{}}
	p.base.Decider, p.base.runtimes = p.decider, u
	v1, v2 = versionOf("one", "1000"), versionOf("two", "")
	p.put(v1, "", v1.byDigest)
	p.put(v2, "", pinnedTag, v2.byDigest)
	return p, u, v1, v2
}

func specOf(annotations map[string]string) *runtime.ImageSpec {
	return &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}
}

// TestImageStatusOfNewRevision reports the image of the node as absent for a revision without a pin, so that kubelet pulls it.
func TestImageStatusOfNewRevision(t *testing.T) {
	p, _, v1, v2 := newResolvingNode(t)
	a, b := p.runSandbox("a", ""), p.runSandbox("b", "")
	p.expectStatus("a new revision", specOf(a), nil)
	p.expectStatus("a handler", &runtime.ImageSpec{Image: pinnedTag, Annotations: a, RuntimeHandler: "runc"}, nil)
	p.expectStatus("a digest", &runtime.ImageSpec{Image: v2.byDigest, Annotations: a}, &v2)
	p.expectStatus("an image ID", &runtime.ImageSpec{Image: v2.id.String(), Annotations: a}, &v2)
	p.expectStatus("no pod", &runtime.ImageSpec{Image: pinnedTag}, &v2)
	p.pin(policy.WorkloadScope("team", "pod-template-hash", "a"), v1, "use")
	p.expectStatus("a revision with a pin", specOf(a), &v1)
	p.expectStatus("another revision", specOf(b), nil)
	unknown := maps.Clone(a)
	for k := range unknown {
		unknown[k] += " of a kubelet that was restarted"
	}
	p.expectStatus("a pod that is not known", specOf(unknown), &v2)
}

// TestImageStatusOfRunningPod answers with the digest that a container of the pod has: the pod keeps its build.
func TestImageStatusOfRunningPod(t *testing.T) {
	p, u, v1, v2 := newResolvingNode(t)
	a, b, c := p.runSandbox("a", ""), p.runSandbox("b", ""), p.runSandbox("c", "")
	u.run("a", "first", v2, nil)
	u.run("a", "second", v1, nil)
	p.expectStatus("the container that was created last", specOf(a), &v1)
	u.run("a", "third", v2, map[string]string{unresolved: "true"})
	p.expectStatus("not one whose tag was not resolved", specOf(a), &v1)
	p.expectStatus("another pod", specOf(b), nil)
	u.run("b", "other", versionOf("removed", ""), nil)
	p.expectStatus("an image that is not on the node", specOf(b), nil)
	tool := versionOf("tool", "")
	u.containers = append(u.containers, &runtime.Container{
		Id: "c", PodSandboxId: "sandbox-c", State: runtime.ContainerState_CONTAINER_RUNNING, Image: &runtime.ImageSpec{Image: tool.id.String(), UserSpecifiedImage: "registry.example/tool:v1"},
	})
	u.volumes["c"] = &runtime.ImageSpec{Image: v1.id.String(), UserSpecifiedImage: pinnedTag}
	p.expectStatus("an image volume", specOf(c), &v1)
	u.volumes["c"].Annotations = map[string]string{unresolved: "true"}
	p.expectStatus("an image volume of a running container whose tag was not resolved", specOf(c), &v1)
	now, err := p.podRuns(p.ctx(), pinnedTag, policy.Pod{UID: "uid-c"})
	if now != (podImage{v1.root.Digest, v1.id, false}) || err != nil {
		t.Errorf("it may not be pinned: got %+v, %v", now, err)
	}
	u.containers[len(u.containers)-1].State = runtime.ContainerState_CONTAINER_EXITED
	p.expectStatus("and of one that is not running", specOf(c), nil)
	now, err = p.podRuns(p.ctx(), pinnedTag, policy.Pod{})
	if now != (podImage{}) || err != nil {
		t.Errorf("no pod: got %+v, %v", now, err)
	}
}

// TestRunningPodWithoutTheCluster keeps the build of a pod whose revision has no pin on the node, also while the API server does not
// answer. A pod without a container runs the image of the node, as without the rule.
func TestRunningPodWithoutTheCluster(t *testing.T) {
	p, u, v1, v2 := newResolvingNode(t)
	p.share(&policyPins{clusterPins: clusterPins{err: errdefs.ErrUnavailable}}, false)
	a, b := p.runSandbox("a", ""), p.runSandbox("b", "")
	u.run("a", "first", v1, nil)
	p.expectStatus("a pod that runs", specOf(a), &v1)
	p.expectStatus("a new pod", specOf(b), &v2)
	ref, err := reference.ParseNamed(pinnedTag)
	noError(t, err)
	for uid, want := range map[string]version{"uid-a": v1, "uid-b": v2} {
		w := containerImage{Used: decide.Used{Ref: ref, Root: v2.root, Unpinned: true}, entry: p.Store.ByRef(pinnedTag)[0]}
		noError(t, (&containers{p.base}).decideNewImage(p.ctx(), &w, policy.Pod{UID: uid}, w.entry.Target))
		if w.unresolved || w.Root.Digest != want.root.Digest {
			t.Errorf("%s: got %+v", uid, w)
		}
	}
}

// TestImageStatusOfImportedImage does not ask kubelet to pull what came from a file.
func TestImageStatusOfImportedImage(t *testing.T) {
	p, _, _, _ := newResolvingNode(t)
	a := p.runSandbox("a", "")
	v := versionOf("three", "")
	rt, err := p.Runtimes().Lookup("")
	noError(t, err)
	for source, want := range map[imagepin.Source]*version{imagepin.SourceImported: &v, imagepin.SourceAdopted: nil, imagepin.SourcePull: nil} {
		p.remove("", pinnedTag)
		_, err = p.Store.(*store.Store).Put(p.ctx(), "", imagepin.Entry{
			Key: imagepin.Key{Ref: pinnedTag, Target: rt.Target}, Root: v.root, Manifest: v.root.Digest, ImageID: v.id, Source: source,
			Record: pinnedTag, RecordTarget: v.root,
		})
		noError(t, err)
		p.expectStatus(string(source), specOf(a), want)
	}
}

// policyPins is a cluster without ImagePins, whose pods have pull policies.
type policyPins struct {
	clusterPins
	policies []string
	reads    int
	refuses  error // of reads
}

func (c *policyPins) PullPolicies(context.Context, policy.Pod, string) ([]string, error) {
	c.reads++
	return c.policies, cmp.Or(c.refuses, c.err)
}

// TestImageStatusOfPodThatNeverPulls reads the pod only where an image would be reported as absent.
func TestImageStatusOfPodThatNeverPulls(t *testing.T) {
	p, u, v1, v2 := newResolvingNode(t)
	pins := &policyPins{policies: []string{"IfNotPresent"}}
	p.share(pins, false)
	a := p.runSandbox("a", "")
	p.expectStatus("IfNotPresent", specOf(a), nil)
	pins.policies = []string{"IfNotPresent", "Never"}
	p.expectStatus("Never", specOf(a), &v2)
	if pins.reads != 2 {
		t.Errorf("read the pod %d times, want once for each answer", pins.reads)
	}
	u.run("a", "first", v1, nil)
	p.expectStatus("a pod that runs", specOf(a), &v1)
	p.expectStatus("no pod", &runtime.ImageSpec{Image: pinnedTag}, &v1)
	if pins.reads != 2 {
		t.Errorf("read the pod %d times, want no more", pins.reads)
	}
}

// TestNewRevisionOfRunningPodForAnotherPlatform pins the digest of a running pod if the caller was given the image ID of another
// platform, as kubelet is for a pod that is not known.
func TestNewRevisionOfRunningPodForAnotherPlatform(t *testing.T) {
	p, u, v1, _ := newResolvingNode(t)
	p.runSandbox("a", "")
	u.run("a", "first", v1, nil)
	ref, err := reference.ParseNamed(pinnedTag)
	noError(t, err)
	e := p.Store.ByRef(v1.byDigest)[0]
	e.ImageID = digest.FromString("config of another platform")
	w := containerImage{Used: decide.Used{Ref: ref, Root: v1.root, New: true, Unpinned: true}, entry: e}
	rt, err := p.Runtimes().Lookup("other")
	noError(t, err)
	noError(t, (&containers{p.base}).decideNewImage(p.ctx(), &w, policy.Pod{UID: "uid-a"}, rt.Target))
	if w.unresolved || w.Root.Digest != v1.root.Digest {
		t.Errorf("got %+v", w)
	}
}

// TestNewRevisionWhosePodIsNotRead uses the image of the node if the API server does not answer what the pull policies of a pod are. It
// does not pin it: the API server may answer the claim.
func TestNewRevisionWhosePodIsNotRead(t *testing.T) {
	p, _, _, v2 := newResolvingNode(t)
	pins := &policyPins{refuses: errdefs.ErrUnavailable}
	p.share(pins, false)
	a := p.runSandbox("a", "")
	p.expectStatus("no answer", specOf(a), &v2)
	ref, err := reference.ParseNamed(pinnedTag)
	noError(t, err)
	w := containerImage{Used: decide.Used{Ref: ref, Root: v2.root, New: true, Unpinned: true}, entry: p.Store.ByRef(pinnedTag)[0]}
	pod := p.base.sandboxes.findByMark([]string{"uid uid-a"}).pod
	c := &containers{p.base}
	noError(t, c.decideNewImage(p.ctx(), &w, pod, w.entry.Target))
	if !w.unresolved {
		t.Error("the image of the node is pinned")
	}
	pins.refuses, pins.policies, w.unresolved = nil, []string{"Never"}, false
	noError(t, c.decideNewImage(p.ctx(), &w, pod, w.entry.Target))
	if w.unresolved {
		t.Error("the image of a pod with Never is not pinned")
	}
}

// TestUnresolvedIsNotShown removes the annotation from what callers see.
func TestUnresolvedIsNotShown(t *testing.T) {
	spec := &runtime.ImageSpec{Image: "sha256:1", UserSpecifiedImage: pinnedTag, Annotations: map[string]string{unresolved: "true"}}
	restoreName(spec)
	if spec.Image != "sha256:1" || spec.UserSpecifiedImage != pinnedTag || spec.Annotations != nil {
		t.Errorf("got %v", spec)
	}
	info := map[string]string{"info": `{"config":{"image":{"image":"sha256:1","annotations":{"` + unresolved + `":"true"}}}}`}
	restoreInfo(info)
	if want := `{"config":{"image":{"image":"sha256:1"}}}`; info["info"] != want {
		t.Errorf("got %s, want %s", info["info"], want)
	}
}

// TestAnnotationOfPodDoesNotCount passes an image volume to upstream without the annotation of a pod that imagepin itself sets.
func TestAnnotationOfPodDoesNotCount(t *testing.T) {
	v := newVerifyingNode(t, policy.Workload)
	spec := &runtime.ImageSpec{
		Image: v.img.Config.Digest.String(), UserSpecifiedImage: adoptedTag, Annotations: map[string]string{unresolved: "by the author", "other": "x"},
	}
	_, err := v.containers.createContainer(t.Context(), &runtime.CreateContainerRequest{
		PodSandboxId: adoptedSandbox, Config: &runtime.ContainerConfig{Mounts: []*runtime.Mount{{Image: spec}}},
	}, func(_ context.Context, r *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
		if got := r.GetConfig().GetMounts()[0].GetImage().GetAnnotations(); !maps.Equal(got, map[string]string{"other": "x"}) {
			t.Errorf("got the annotations %v", got)
		}
		return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
	})
	noError(t, err)
}
