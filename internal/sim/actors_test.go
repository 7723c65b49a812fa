package sim

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// caller is one client of the node.
type caller struct {
	w    *world
	ctx  context.Context
	name string
	rng  *rand.Rand
	args []string // arguments of the action; empty means random
}

func (w *world) caller(ctx context.Context, name string) *caller {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return &caller{w: w, ctx: ctx, name: name, rng: rand.New(rand.NewPCG(w.seed, h.Sum64()))}
}

func (k *caller) pick(all ...string) string { return all[k.rng.IntN(len(all))] }

func (k *caller) ref() string {
	if len(k.args) > 0 {
		ref := "registry.example/team/" + k.args[0]
		k.args = k.args[1:]
		return ref
	}
	return k.pick(k.w.choice.refs...)
}

func (k *caller) handler() string {
	if len(k.args) > 0 {
		return k.args[0]
	}
	return k.pick("runc", "runc", "second", "foreign")
}

// step is a step of the caller itself, not of a process.
func (k *caller) step(format string, args ...any) { _ = k.w.step(k.ctx, nil, format, args...) }

const (
	callTimeout = 15 * time.Minute
	// slowCall is how long a call for another registry's images may take while a registry is slow.
	slowCall = 5 * time.Minute
	control  = "imagepin.v1.Control"
)

// checkedCall makes a call and checks its outcome.
func checkedCall[Resp proto.Message](k *caller, service, method string, o *op, req proto.Message) (Resp, error) {
	k.step("calls %s %s %s", method, subject(req), o.handler)
	w := k.w
	p := w.proc
	if err := k.ctx.Err(); err != nil {
		var none Resp
		return none, err
	}
	ctx, cancel := context.WithTimeout(k.ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // the connection ends with the process
	o.actor, o.method, o.start, o.began = k.name, method, w.steps, time.Now()
	w.facts.mu.Lock()
	w.facts.ops = append(w.facts.ops, o)
	w.facts.mu.Unlock()
	o.pinned = w.pin(o)
	resp, err := call[Resp](ctx, p, service, method, req)
	o.err, o.took = err, time.Since(o.began)
	result := outcome(resp, err)
	if w.alive(p) != nil {
		result = "the connection has ended"
	}
	if created, ok := any(resp).(*runtime.CreateContainerResponse); ok && err == nil {
		o.id, o.container = w.cri.imageOf(created.GetContainerId()), created.GetContainerId()
		o.wasPinned = o.pinned != "" || w.pin(o) != ""
	}
	k.step("got from %s %s: %s", method, subject(req), result)
	w.facts.mu.Lock()
	o.end, o.ended = w.steps, true
	w.facts.mu.Unlock()
	if pulled, ok := any(resp).(*runtime.PullImageResponse); ok && err == nil {
		o.id = pulled.GetImageRef()
	}
	if seen, ok := any(resp).(*runtime.ImageStatusResponse); ok && err == nil {
		o.id = seen.GetImage().GetId()
	}
	k.checkOutcome(o, p)
	return resp, err
}

// pin returns the digest of the pin that applies to a call, or "".
func (w *world) pin(o *op) digest.Digest {
	if o.scope == "" {
		return ""
	}
	img, err := w.images.Get(namespaces.WithNamespace(context.Background(), "imagepin"), o.scope+"/"+o.ref)
	if err != nil {
		return ""
	}
	return img.Target.Digest
}

// checkPin checks that a call used the image of the pin that applies to it.
func (k *caller) checkPin(o *op) {
	if o.pinned == "" || o.id == "" || k.w.pin(o) != o.pinned || o.sandbox != "" && !k.w.cri.has(o.sandbox) {
		return
	}
	// A pin may be recorded but not yet in effect while a call writes it.
	if o.method == "ImageStatus" && k.w.facts.concurrent(o) || k.w.facts.pinning(o) || k.w.facts.pinMoved(o) {
		return
	}
	b := k.w.registry.byRoot(o.pinned)
	platform, _ := k.w.target(o.handler)
	if b != nil && b.images[platform].config.Digest.String() != o.id {
		k.w.wrong(pinIgnored, "%s %s for %s: got image %s, want the image of pinned digest %s", o.method, o.ref, o.handler, o.id, o.pinned)
	}
}

// scope returns the scope of the pins that apply to a pod's calls.
func (w *world) scope(config *runtime.PodSandboxConfig) string {
	switch w.choice.consistency {
	case "node":
		return "node"
	case "workload":
		if config != nil {
			return "workload/" + config.GetMetadata().GetNamespace() + "/pod-template-hash=" + config.GetLabels()["pod-template-hash"]
		}
	}
	return ""
}

func outcome(resp proto.Message, err error) string {
	if err != nil {
		return err.Error()
	}
	switch r := resp.(type) {
	case *runtime.PullImageResponse:
		return r.GetImageRef()
	case *runtime.ImageStatusResponse:
		if r.GetImage() == nil {
			return "absent"
		}
		return r.GetImage().GetId()
	case *runtime.RunPodSandboxResponse:
		return r.GetPodSandboxId()
	case *runtime.CreateContainerResponse:
		return r.GetContainerId()
	}
	return "done"
}

// checkOutcome checks the outcome of a call.
func (k *caller) checkOutcome(o *op, p *process) {
	w := k.w
	took := o.took
	ofSlow := strings.HasPrefix(o.ref, slowHost)
	if o.denied && o.err == nil {
		w.wrong(accessWithout, "%s %s for %s: got image %s without a credential", o.method, o.ref, o.handler, o.id)
	}
	if w.choice.locks && w.alive(p) == nil {
		w.checkSwitch(o)
	}
	switch {
	case w.alive(p) != nil || k.ctx.Err() != nil:
		return // no caller waits for it
	case w.choice.drip && took >= slowCall && !ofSlow && o.method != "Check": // a repair fetches from all registries
		w.wrong(callDripped, "%s %s took %s", o.method, o.ref, took)
		return
	case ofSlow && errors.Is(o.err, context.DeadlineExceeded) || ofSlow && status.Code(o.err) == codes.DeadlineExceeded:
		return
	case ofSlow && o.method == "Apply" && took >= callTimeout:
		return
	case took >= callTimeout:
		w.wrong(callUnanswered, "%s %s took %s", o.method, o.ref, took)
		return
	case o.denied:
		return
	case o.err == nil:
		k.checkPin(o)
		k.checkLocked(o)
		// If Refresh or Check cannot make one target ready, it collects garbage before the next target.
		severalTargets := o.method == "Refresh" || o.method == "Check"
		if w.choice.slowGC > 0 && !severalTargets && took >= w.choice.slowGC*3/4 && !o.removes && !w.facts.removed(o.id, o.start) {
			w.wrong(callSlow, "%s %s took %s", o.method, o.ref, took)
		}
		return
	case w.registry.failedSince(w.facts.sharedSince(o)) && slices.Contains([]string{"PullImage", "CreateContainer", "SetPin", "Refresh", "Apply"}, o.method):
		return
	case w.facts.toolWrote(o.start):
		return
	}
	if o.method == "CreateContainer" || w.facts.killedAt.Load() >= int64(o.start) {
		return // startContainer checks the error, or containerd was killed
	}
	text := o.err.Error()
	switch {
	case w.expected(text):
	case w.choice.locks && w.expectedOfLock(o, text):
	case o.method == "RemovePin" && status.Code(o.err) == codes.NotFound:
	case o.method == "Refresh" && status.Code(o.err) == codes.NotFound: // the image is not on the node
	case strings.Contains(text, "UpstreamNotSynced"):
		w.wrong(notVisible, "%s %s: %v", o.method, o.ref, o.err)
	case errors.Is(o.err, context.DeadlineExceeded) || strings.Contains(text, "deadline exceeded"):
		w.wrong(callDeadline, "%s %s: %v", o.method, o.ref, o.err)
	default:
		w.wrong(callFailed, "%s %s: %v", o.method, o.ref, o.err)
	}
}

// expected reports whether the history causes an error: containerd does not run, the verifier rejects an image, or a
// namespace has reached its limit of pins.
func (w *world) expected(text string) bool {
	return strings.Contains(text, errAway.Error()) || w.choice.refuse != "" && strings.Contains(text, "blocked") ||
		w.choice.cap > 0 && strings.Contains(text, "max_pins_per_namespace allows no more")
}

// act performs one action of a history.
func (k *caller) act(what string) {
	k.args = strings.Fields(what)[1:]
	switch strings.Fields(what)[0] {
	case "pod":
		k.pod()
	case "pull":
		k.pull()
	case "slow-pull":
		for range 2 {
			k.pullRef(slowRef(k.rng.IntN(slowNames)), k.pick("runc", "second"))
		}
	case "image-gc":
		k.imageGC()
	case "crictl-rmi":
		k.rmi()
	case "pod-ends":
		k.podEnds()
	case "move":
		ref := k.ref()
		to := k.w.registry.builds[k.rng.IntN(3)]
		if len(k.args) > 0 {
			to = k.w.registry.named(k.args[0])
		}
		k.step("moves %s to %s", short(ref), to.name)
		k.w.registry.move(ref, to)
	case "fail":
		n := 1 + k.rng.IntN(3)
		k.step("lets %d requests fail", n)
		k.w.registry.fail(n)
	case "ctr-pull":
		k.ctrPull()
	case "ctr-tag":
		k.ctrTag()
	case "ctr-rm":
		k.ctrRemove()
	case "reload":
		k.step("reloads imagepin")
		if err := k.w.reload(); err != nil {
			k.w.wrong(callFailed, "reload: %v", err)
		}
	case "lose-track":
		k.step("ends the events of imagepin")
		k.w.mu.Lock()
		select {
		case k.w.stream <- errors.New("the events have ended"):
		default:
		}
		k.w.mu.Unlock()
	case "pin":
		ref := k.ref()
		to, retain := k.w.registry.builds[k.rng.IntN(3)], k.rng.IntN(2) == 0
		if len(k.args) > 0 {
			to, retain = k.w.registry.named(k.args[0]), true
		}
		k.w.facts.unpinned.Store(true)
		_, _ = checkedCall[*api.SetPinResponse](k, control, "SetPin", &op{ref: ref},
			&api.SetPinRequest{Ref: ref, Digest: to.root.Digest.String(), Retain: proto.Bool(retain)})
	case "unpin":
		ref, scope := k.ref(), "node"
		if k.w.choice.consistency == "workload" {
			scope = "workload/" + k.pick("blue", "green") + "/pod-template-hash=" + k.pick("r1", "r2")
		}
		k.w.facts.unpinned.Store(true)
		_, _ = checkedCall[*api.RemovePinResponse](k, control, "RemovePin", &op{ref: ref}, &api.RemovePinRequest{Ref: ref, Scope: scope})
	case "refresh":
		ref := k.ref()
		k.w.facts.refreshed.Store(true)
		_, _ = checkedCall[*api.RefreshResponse](k, control, "Refresh", &op{ref: ref}, &api.RefreshRequest{Ref: ref})
	case "repair":
		_, _ = checkedCall[*api.CheckResponse](k, control, "Check", &op{}, &api.CheckRequest{Repair: true})
	case "apply":
		k.apply(k.args[0], len(k.args) > 1)
	case "apply-cancel":
		_, _ = checkedCall[*api.CancelApplyResponse](k, control, "CancelApply", &op{}, &api.CancelApplyRequest{})
	case "rollback":
		_, _ = checkedCall[*api.ApplyResponse](k, control, "Rollback", &op{}, &api.RollbackRequest{})
	case "lock-rm":
		_, _ = checkedCall[*api.RemoveLockResponse](k, control, "RemoveLock", &op{}, &api.RemoveLockRequest{Previous: k.rng.IntN(4) == 0})
	case "look":
		k.look()
	case "user-starts":
		k.userStarts()
	case "many-names":
		k.manyNames()
	case "gc":
		for range 1 + k.rng.IntN(4) {
			k.step("collects")
			if err := k.w.collect(k.ctx); err != nil {
				k.w.wrong(callFailed, "garbage collection: %v", err)
			}
		}
	}
}

// pull pulls an image, as crictl pull does.
func (k *caller) pull() {
	ref, handler := k.ref(), k.handler()
	if handler == "foreign" && strings.HasSuffix(ref, "other:2") {
		handler = "runc" // this image has no other platform
	}
	k.pullRef(ref, handler)
}

// pullRef pulls an image for a handler.
func (k *caller) pullRef(ref, handler string) {
	_, _ = checkedCall[*runtime.PullImageResponse](k, "ImageService", "PullImage", &op{ref: ref, handler: handler, scope: k.w.scope(nil)},
		&runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: ref, RuntimeHandler: handler}})
}

// pod starts a pod, as kubelet does: sandbox, image, container.
func (k *caller) pod() {
	ref, handler := k.ref(), k.handler()
	if handler == "foreign" && strings.HasSuffix(ref, "other:2") {
		handler = "runc"
	}
	always := k.rng.IntN(3) == 0
	gate := k.rng.IntN(2) == 0
	config := &runtime.PodSandboxConfig{
		Metadata:    &runtime.PodSandboxMetadata{Name: k.name, Uid: "uid-" + k.name, Namespace: k.pick("blue", "green")},
		Labels:      map[string]string{"pod-template-hash": k.pick("r1", "r2")},
		Annotations: map[string]string{"kubernetes.io/config.seen": "seen-" + k.name},
	}
	spec := func() *runtime.ImageSpec {
		s := &runtime.ImageSpec{Image: ref, Annotations: config.GetAnnotations(), UserSpecifiedImage: ref}
		if gate {
			s.RuntimeHandler = handler
		}
		return s
	}
	var sandbox string
	for try := 0; sandbox == ""; try++ {
		if try == 3 {
			return
		}
		resp, err := checkedCall[*runtime.RunPodSandboxResponse](k, "RuntimeService", "RunPodSandbox", &op{handler: handler},
			&runtime.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err == nil {
			sandbox = resp.GetPodSandboxId()
		} else if k.ctx.Err() != nil {
			return
		}
	}
	for range 3 {
		done := k.startContainer(config, sandbox, ref, handler, spec, always)
		if done || k.ctx.Err() != nil {
			return
		}
	}
}

// startContainer makes one attempt to start a container, as kubelet does. It reports whether this was the last attempt.
func (k *caller) startContainer(config *runtime.PodSandboxConfig, sandbox, ref, handler string, spec func() *runtime.ImageSpec, always bool) bool {
	since := k.w.steps
	id := ""
	if !always {
		resp, err := checkedCall[*runtime.ImageStatusResponse](k, "ImageService", "ImageStatus",
			&op{ref: ref, handler: handler, scope: k.w.scope(config), sandbox: sandbox}, &runtime.ImageStatusRequest{Image: spec()})
		if err != nil {
			return false
		}
		id = resp.GetImage().GetId()
	}
	if id == "" {
		resp, err := checkedCall[*runtime.PullImageResponse](k, "ImageService", "PullImage", &op{ref: ref, handler: handler, scope: k.w.scope(config)},
			&runtime.PullImageRequest{Image: spec(), SandboxConfig: config})
		if err != nil {
			return false
		}
		id = resp.GetImageRef()
	}
	if _, err := checkedCall[*runtime.ImageStatusResponse](k, "ImageService", "ImageStatus", &op{ref: ref},
		&runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: ref}}); err != nil {
		return false
	}
	o := &op{ref: ref, handler: handler, id: id, scope: k.w.scope(config)}
	_, err := checkedCall[*runtime.CreateContainerResponse](k, "RuntimeService", "CreateContainer", o, &runtime.CreateContainerRequest{
		PodSandboxId: sandbox, SandboxConfig: config,
		Config: &runtime.ContainerConfig{
			Metadata: &runtime.ContainerMetadata{Name: "c"}, Image: &runtime.ImageSpec{Image: id, UserSpecifiedImage: ref},
		},
	})
	if err == nil {
		return true
	}
	w := k.w
	if w.expected(err.Error()) || w.facts.killedAt.Load() >= int64(since) || k.ctx.Err() != nil || w.facts.toolWrote(since) ||
		w.facts.removed(id, since) || w.registry.failedSince(w.facts.sharedSince(o)) || !w.cri.has(sandbox) {
		return false
	}
	name := notRunnable
	if strings.Contains(err.Error(), "deadline exceeded") {
		name = callDeadline
	}
	w.wrong(name, "CreateContainer of %s for %s: %v", ref, handler, err)
	return true
}

// podEnds removes a container and its sandbox.
func (k *caller) podEnds() {
	k.step("looks for a pod to end")
	c := k.w.cri
	c.mu.Lock()
	ids := sorted(c.containers)
	c.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	id := ids[k.rng.IntN(len(ids))]
	c.mu.Lock()
	box := c.containers[id].sandbox
	c.mu.Unlock()
	_, _ = checkedCall[*runtime.RemoveContainerResponse](k, "RuntimeService", "RemoveContainer", &op{}, &runtime.RemoveContainerRequest{ContainerId: id})
	_, _ = checkedCall[*runtime.RemovePodSandboxResponse](k, "RuntimeService", "RemovePodSandbox", &op{}, &runtime.RemovePodSandboxRequest{PodSandboxId: box})
}

// imageGC removes images by ID, as kubelet's image garbage collection does.
func (k *caller) imageGC() {
	resp, err := checkedCall[*runtime.ListImagesResponse](k, "ImageService", "ListImages", &op{}, &runtime.ListImagesRequest{})
	if err != nil {
		return
	}
	for _, img := range resp.GetImages() {
		if img.GetPinned() || k.rng.IntN(3) == 0 {
			continue
		}
		_, _ = checkedCall[*runtime.RemoveImageResponse](k, "ImageService", "RemoveImage", &op{id: img.GetId(), removes: true, ref: img.GetId()},
			&runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: img.GetId()}})
	}
}

// rmi removes a tag, as crictl rmi does.
func (k *caller) rmi() {
	ref := k.ref()
	_, _ = checkedCall[*runtime.RemoveImageResponse](k, "ImageService", "RemoveImage", &op{removes: true, ref: ref},
		&runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: ref}})
}
