package sim

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// choice is the content of a history.
type choice struct {
	consistency string
	retain      bool
	behavior    string
	discard     bool
	socket      bool // imagepin runs in a separate process, and a kill ends only one of it and containerd
	slowGC      time.Duration
	before      []string // actions that run first, one after the other
	actors      []string // actions that run concurrently
	kill        bool
	reconfigure bool     // after the kill, handler foreign has another snapshotter
	refs        []string // references in this history
	expire      bool     // pins are swept concurrently
	refuse      string   // the build that the image verifier rejects, or ""
	cap         int      // maximum number of pins of a namespace; zero means the default
}

func choose(rng *rand.Rand) choice {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	c := choice{
		consistency: pick("off", "off", "node", "workload"),
		behavior:    pick("default", "default", "default", "always", "once", "prefer-cached"),
		discard:     rng.IntN(5) == 0,
		socket:      rng.IntN(3) == 0,
		kill:        rng.IntN(3) == 0,
	}
	c.refs = []string{app + ":1", app + ":1", app + ":1", app + ":2", app + ":2", app + ":3", other + ":1", other + ":2"}
	switch rng.IntN(3) {
	case 0:
		c.refs = []string{app + ":1", app + ":1", app + ":3"}
	case 1:
		c.refs = []string{app + ":1", app + ":2"}
	}
	c.retain = c.consistency != "off" && rng.IntN(3) > 0
	if rng.IntN(12) == 0 {
		c.slowGC, c.kill = 20*time.Second, false
	}
	for range rng.IntN(3) {
		c.before = append(c.before, pick("pull", "pull", "pod", "ctr-pull", "pod-ends"))
	}
	if c.consistency != "off" && rng.IntN(5) == 0 {
		c.expire, c.before = true, append(c.before, "pod", "pull")
	}
	calm := rng.IntN(3) == 0 // only kubelet, crictl, and moves of tags
	for range 2 + rng.IntN(4) {
		if c.expire || c.consistency != "off" && rng.IntN(4) == 0 {
			c.actors = append(c.actors, pick("pod", "pod", "pull", "pin", "unpin", "refresh", "move", "image-gc"))
			continue
		}
		if calm {
			c.actors = append(c.actors, pick("pod", "pod", "pull", "pull", "image-gc", "crictl-rmi", "move"))
			continue
		}
		c.actors = append(c.actors, pick(
			"pod", "pod", "pod", "pull", "pull", "image-gc", "crictl-rmi", "crictl-rmi", "move", "fail", "ctr-pull", "ctr-pull", "ctr-rm", "ctr-tag", "gc", "gc", "pod-ends", "lose-track", "reload", "pin", "unpin", "refresh", "repair"))
	}
	if rng.IntN(8) == 0 {
		c.refuse = pick("B", "C")
	}
	if c.consistency != "off" && rng.IntN(5) == 0 {
		c.cap = 1
	}
	if rng.IntN(4) == 0 {
		c.repeatFailure(rng)
	}
	return c
}

// repeatFailure makes the history a variation of one that failed before.
func (c *choice) repeatFailure(rng *rand.Rand) {
	c.consistency, c.retain, c.behavior, c.expire, c.slowGC = "off", false, "default", false, 0
	c.refuse, c.cap = "", 0
	switch rng.IntN(11) {
	case 0: // adoption of an image that another tool has tagged, during a pull of that tag
		c.before = []string{"pull app:3 runc", "pull app:2 runc"}
		c.actors = []string{"ctr-tag app:2 app:1", "move app:1 B", "pull app:1 runc"}
	case 1: // images are listed again during calls
		c.before = []string{"pull app:3 runc", "ctr-pull app:1"}
		c.actors = []string{"lose-track", "move app:1 B", "pull app:1 runc", "image-gc", "crictl-rmi app:1", "ctr-pull app:2"}
		rng.Shuffle(len(c.actors), func(i, j int) { c.actors[i], c.actors[j] = c.actors[j], c.actors[i] })
		c.actors = c.actors[:4]
	case 2: // removal of an adopted image during the start of a pod
		c.before = []string{"ctr-pull app:1"}
		c.kill = false
		c.actors = []string{"pod app:1 runc", "crictl-rmi app:1", "pod app:1 runc", "image-gc", "gc"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 3: // a workload is pinned to the previous digest of its tag
		c.consistency = "workload"
		c.before = []string{"pod app:1 runc", "move app:1 B", "pull app:1 runc"}
		c.actors = []string{"pod app:1 runc", "pod app:1 runc", "pod app:1 second", "crictl-rmi app:1"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 4: // a namespace reaches its limit of pins
		c.consistency, c.cap = "workload", 1
		c.before = []string{"pod app:1 runc", "pod-ends"}
		c.actors = []string{"pod app:1 runc", "pod app:1 runc", "pod app:3 runc", "pod-ends", "image-gc"}
		c.actors = c.actors[:3+rng.IntN(3)]
	case 5: // a pin with retain is set while another key of its digest is recorded
		c.actors = []string{"pin app:1 A", "pull app:1 runc", "pull app:2 second", "ctr-pull app:2"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 6: // containerd's CRI writes the record of an image ID while the image is removed
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"ctr-tag app:1 app:2", "crictl-rmi app:1", "image-gc", "crictl-rmi app:2", "ctr-pull app:2"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 7: // an operator pins a tag to an image that the verifier rejects, during its first use
		c.consistency, c.refuse = "node", "B"
		c.actors = []string{"pin app:1 B", "pull app:1 runc", "pod app:1 runc", "pull app:1 second"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 8: // removal of an image during the first pull of another of its tags
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"crictl-rmi app:1", "pull app:2 runc", "pod app:2 runc", "image-gc", "gc"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 9: // slow garbage collection of retained content, while other content is retained
		c.consistency, c.retain, c.slowGC, c.kill = "node", true, 20*time.Second, false
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"pin app:1 B", "pull app:3 runc", "pull app:1 second"}
		c.actors = c.actors[:2+rng.IntN(2)]
	case 10: // pins are made, moved and removed while they are read again
		c.consistency, c.retain, c.kill = "node", true, false
		c.before = []string{"pull app:2 runc"}
		c.actors = []string{"reload", "pin app:1 A", "pull app:3 runc", "pin app:2 B", "unpin", "reload"}
		c.actors = c.actors[:3+rng.IntN(4)]
	}
}

// facts are the events of a history that the checks need.
type facts struct {
	mu         sync.Mutex
	otherTools atomic.Bool
	toolAt     atomic.Int64 // step of the last write of another tool, or of a removal that followed one
	killedAt   atomic.Int64 // step of the last kill
	unpinned   atomic.Bool  // an operator has set or removed a pin
	refreshed  atomic.Bool
	pins       sync.Map // names of pins that were created
	movedByCRI sync.Map // names of records that containerd's CRI has moved to a target that it read earlier
	ops        []*op
	pinWrites  []*pinWrite
}

// pinWrite is a write of a pin's record.
type pinWrite struct {
	name string
	step int
	done int           // the step at which the writer knows it, and the pin is in effect; 0 before that
	lost bool          // the writer got no answer, so the pin is in effect after the next list of the pins
	root digest.Digest // "" if the pin was deleted
}

// pinWritten notes a write. The writer calls done when the write has returned, with the error of the answer.
func (f *facts) pinWritten(name string, step int, root digest.Digest) (done func(step int, answer error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &pinWrite{name: name, step: step, root: root}
	f.pinWrites = append(f.pinWrites, w)
	return func(step int, answer error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if w.lost = answer != nil; !w.lost {
			w.done = step
		}
	}
}

// pinsListed notes a list of the pins that began at a step and has returned.
func (f *facts) pinsListed(began, step int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.pinWrites {
		if w.lost && w.step <= began {
			w.done, w.lost = step, false
		}
	}
}

// pinMoved reports whether the pin of a call had another digest at any time during the call than at its start, or was not
// in effect yet when the call began.
func (f *facts) pinMoved(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.pinWrites, func(w *pinWrite) bool {
		return w.name == o.scope+"/"+o.ref && (w.step >= o.start && w.root != o.pinned || w.step < o.start && (w.done == 0 || w.done >= o.start))
	})
}

// op is one call, or one action of another tool.
type op struct {
	actor, method, ref, handler string
	start, end                  int
	ended                       bool
	began                       time.Time
	took                        time.Duration
	id                          string        // image ID of the call
	root                        digest.Digest // target of the record that ctr writes
	scope                       string        // scope of the pin that applies, or ""
	pinned                      digest.Digest // digest of that pin when the call began
	sandbox                     string        // sandbox of the pod
	container                   string        // container that the call created
	wasPinned                   bool          // a pin existed when the call began or ended
	removes                     bool
	err                         error
}

func (f *facts) tool(step int) {
	f.otherTools.Store(true)
	f.toolAt.Store(int64(step))
}

// toolWrote reports whether another tool has written since a step.
func (f *facts) toolWrote(since int) bool {
	return f.otherTools.Load() && f.toolAt.Load() >= int64(since)
}

// removed reports whether a removal of an image ran at or after a step.
func (f *facts) removed(id string, since int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(o *op) bool {
		return o.removes && (o.id == id || o.id == "") && (!o.ended || o.end >= since)
	})
}

// sharedSince returns the earliest step at which another call can have started the work that a call waits for.
func (f *facts) sharedSince(o *op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := o.start
	for changed := true; changed; {
		changed = false
		for _, other := range f.ops {
			if other.ref == o.ref && other.start < since && (!other.ended || other.end >= since) {
				since, changed = other.start, true
			}
		}
	}
	return since
}

// concurrent reports whether another call for the same reference ran at the same time.
func (f *facts) concurrent(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(other *op) bool {
		return other != o && other.ref == o.ref && (!other.ended || other.end >= o.start)
	})
}

// pinning reports whether a pin of the reference was being moved when a call began.
func (f *facts) pinning(o *op) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(other *op) bool {
		return other.method == "SetPin" && other.ref == o.ref && other.start <= o.start && (!other.ended || other.end >= o.start)
	})
}

func infoOf(id string) snapshots.Info {
	return snapshots.Info{Name: id, Labels: map[string]string{"containerd.io/gc.root": "container"}}
}

// process returns the current process of containerd's CRI.
func (c *containerdCRI) process() *process { return c.current }

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
	control     = "imagepin.v1.Control"
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
	switch {
	case w.alive(p) != nil || k.ctx.Err() != nil:
		return // no caller waits for it
	case took >= callTimeout:
		w.wrong(callUnanswered, "%s %s took %s", o.method, o.ref, took)
		return
	case o.err == nil:
		k.checkPin(o)
		// If Refresh or Check cannot make one target ready, it collects garbage before the next target.
		severalTargets := o.method == "Refresh" || o.method == "Check"
		if w.choice.slowGC > 0 && !severalTargets && took >= w.choice.slowGC*3/4 && !o.removes && !w.facts.removed(o.id, o.start) {
			w.wrong(callSlow, "%s %s took %s", o.method, o.ref, took)
		}
		return
	case w.registry.failedSince(w.facts.sharedSince(o)) && slices.Contains([]string{"PullImage", "CreateContainer", "SetPin", "Refresh"}, o.method):
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
			&api.SetPinRequest{Ref: ref, Digest: to.root.Digest.String(), Retain: retain})
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

// tool is a step of another tool that then writes.
func (k *caller) tool(format string, args ...any) {
	k.step(format, args...)
	k.w.facts.tool(k.w.steps)
}

// ctrPull pulls an image, as ctr images pull does. It writes content under a lease. Then it unpacks the image and
// writes its record, in this order (as client.Pull does) or in the other (as the transfer service does).
func (k *caller) ctrPull() {
	ref := k.ref()
	b := k.w.registry.tag(ref)
	img := b.images[native()]
	w := k.w
	k.tool("makes a lease")
	l, err := w.leases.Create(k.ctx, leases.WithID("ctr "+k.name), leases.WithExpiration(24*time.Hour))
	if err != nil {
		w.wrong(callFailed, "ctr: %v", err)
		return
	}
	ctx := leases.WithLease(k.ctx, l.ID)
	fail := func(err error) {
		if err != nil {
			w.wrong(callFailed, "ctr: %v", err)
		}
	}
	k.tool("fetches %s", b.name)
	for _, d := range slices.Concat(img.layers, []ocispec.Descriptor{img.config, img.manifest, b.root}) {
		fail(put(ctx, w.blobs, d, w.registry.blobs[d.Digest]))
	}
	only := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		return []ocispec.Descriptor{img.manifest}, nil
	})
	if b.root.Digest != img.manifest.Digest {
		_, err = images.SetChildrenLabels(w.blobs, only)(ctx, b.root)
		fail(err)
	}
	_, err = images.SetChildrenLabels(w.blobs, images.ChildrenHandler(w.blobs))(ctx, img.manifest)
	fail(err)
	if k.rng.IntN(2) == 0 {
		k.tool("unpacks %s", b.name)
		fail(k.unpack(ctx, img))
		k.tool("records %s → %s", ref, b.name)
		fail(k.set(ctx, ref, b.root))
	} else {
		k.tool("records %s → %s", ref, b.name)
		fail(k.set(ctx, ref, b.root))
		k.tool("unpacks %s", b.name)
		fail(k.unpack(ctx, img))
	}
	k.tool("deletes its lease")
	fail(w.leases.Delete(k.ctx, l))
	if k.rng.IntN(2) == 0 {
		k.tool("collects")
		fail(w.collect(k.ctx))
	}
}

// set creates or updates a record, as ctr does.
func (k *caller) set(ctx context.Context, ref string, target ocispec.Descriptor) error {
	o := &op{actor: k.name, method: "ctr", ref: ref, root: target.Digest, start: k.w.steps, end: k.w.steps, ended: true}
	if b := k.w.registry.byRoot(target.Digest); b != nil {
		o.id = b.images[native()].config.Digest.String()
	}
	k.w.facts.mu.Lock()
	k.w.facts.ops = append(k.w.facts.ops, o)
	k.w.facts.mu.Unlock()
	_, err := k.w.images.Create(ctx, images.Image{Name: ref, Target: target})
	if errdefs.IsAlreadyExists(err) {
		_, err = k.w.images.Update(ctx, images.Image{Name: ref, Target: target}, "target")
	}
	return err
}

// unpack commits the snapshots of an image in the default snapshotter.
func (k *caller) unpack(ctx context.Context, img image) error {
	sn := k.w.db.Snapshotter("first")
	parent := ""
	var ids []digest.Digest
	for _, l := range img.layers {
		ids = append(ids, l.Digest)
		name := identity.ChainID(slices.Clone(ids)).String()
		if _, err := sn.Stat(ctx, name); err != nil {
			extract := "extract-" + k.name + name
			if _, err := sn.Prepare(ctx, extract, parent); err != nil {
				return err
			}
			if err := sn.Commit(ctx, name, extract); err != nil && !errdefs.IsAlreadyExists(err) {
				return err
			}
		}
		parent = name
	}
	if parent == "" {
		return nil
	}
	label := "containerd.io/gc.ref.snapshot.first"
	_, err := k.w.blobs.Update(ctx, content.Info{Digest: img.config.Digest, Labels: map[string]string{label: parent}}, "labels."+label)
	return err
}

// ctrTag tags an existing image, as ctr images tag --force does.
func (k *caller) ctrTag() {
	k.tool("looks for an image to tag")
	from, to := k.ref(), k.ref()
	img, err := k.w.images.Get(k.ctx, from)
	if err != nil {
		return
	}
	k.tool("tags %s as %s", from, to)
	if err := k.set(k.ctx, to, img.Target); err != nil {
		k.w.wrong(callFailed, "ctr tag: %v", err)
	}
}

// ctrRemove removes a record, as ctr images rm does.
func (k *caller) ctrRemove() {
	ref := k.ref()
	k.tool("removes %s", ref)
	err := k.w.images.Delete(k.ctx, ref)
	if err != nil && !errdefs.IsNotFound(err) {
		k.w.wrong(callFailed, "ctr rm: %v", err)
	}
	if err == nil && k.rng.IntN(2) == 0 {
		k.tool("collects")
		if err := k.w.collect(k.ctx); err != nil {
			k.w.wrong(callFailed, "ctr rm: %v", err)
		}
	}
}
