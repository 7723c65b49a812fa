package kubelet

import (
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/images"
)

// policies are kubelet's pull policies.
var policies = []core.PullPolicy{core.PullAlways, core.PullIfNotPresent, core.PullNever}

// containerOf returns the name of the container with a pull policy.
func containerOf(pull core.PullPolicy) string { return strings.ToLower(string(pull)) }

// trio has the images of a pod with three containers, one for each pull policy. Each container has its own image, so
// that none runs an image that another has pulled.
type trio struct {
	name string
	uid  int
	refs map[core.PullPolicy]string
}

// trioPod is a pod that runs a trio.
type trioPod struct {
	*core.Pod
	trio
	class string
}

func (x trio) options(pull core.PullPolicy) images.Options {
	opts := images.Options{Version: x.name + "-" + containerOf(pull)}
	if x.uid != 0 {
		opts.User = strconv.Itoa(x.uid)
	}
	return opts
}

// pushTrio pushes images whose USER is uid. If uid is 0, they have none.
func (r *kubeletRig) pushTrio(name string, uid int) trio {
	r.T.Helper()
	x := trio{name: name, uid: uid, refs: map[core.PullPolicy]string{}}
	for _, pull := range policies {
		x.refs[pull], _ = r.push("app/"+name+"-"+containerOf(pull)+":v1", x.options(pull))
	}
	return x
}

// createTrio creates a pod that runs a trio, after it has applied more to the spec. It pulls the image with the policy
// Never for the pod's class first.
func (r *kubeletRig) createTrio(name, class string, x trio, more ...func(*core.PodSpec)) trioPod {
	r.T.Helper()
	if _, err := r.Pull(r.Ctx, x.refs[core.PullNever], handler(class)); err != nil {
		r.T.Fatal(err)
	}
	p := r.pod(name+"-"+title(class), class, "", "")
	p.Spec.Containers = nil
	for _, pull := range policies {
		p.Spec.Containers = append(p.Spec.Containers, core.Container{Name: containerOf(pull), Image: x.refs[pull], ImagePullPolicy: pull})
	}
	for _, f := range more {
		f(&p.Spec)
	}
	r.create(p)
	return trioPod{Pod: p, trio: x, class: class}
}

// wantTrio fails the test unless each container prints the line of its image and class at its nth start.
func (r *kubeletRig) wantTrio(p trioPod, nth int) {
	r.T.Helper()
	for _, pull := range policies {
		r.wantLogOf(p.Pod, containerOf(pull), nth, line(p.class, p.options(pull), p.uid))
	}
}

// runTrio waits until a pod runs, and checks what it prints.
func (r *kubeletRig) runTrio(p trioPod) trioPod {
	r.T.Helper()
	p.Pod = r.waitPod(p.Pod, "runs", running)
	r.wantTrio(p, 0)
	return p
}

// orders returns the classes in every order. The last element is nil, which means all classes at once.
func orders() [][]string {
	var all [][]string
	for i := range classes {
		for j := range classes {
			if i != j {
				all = append(all, []string{classes[i], classes[j], classes[3-i-j]})
			}
		}
	}
	return append(all, nil)
}

// testOrders runs the same images in every class with every pull policy, one class after another in every order and all
// at once. The pods remain for testKill.
func (r *kubeletRig) testOrders() { r.runOrders(orders()) }

// runOrders is testOrders for some of the orders.
func (r *kubeletRig) runOrders(orders [][]string) {
	for _, order := range orders {
		name := "at-once"
		if order != nil {
			name = strings.Join([]string{title(order[0]), title(order[1]), title(order[2])}, "-")
		}
		r.T.Run(name, func(t *testing.T) {
			t.Parallel()
			r := r.in(t)
			x := r.pushTrio(name, 0)
			var pods []trioPod
			if order != nil {
				for _, class := range order {
					pods = append(pods, r.runTrio(r.createTrio(name, class, x)))
				}
			} else {
				for _, class := range classes {
					pods = append(pods, r.createTrio(name, class, x))
				}
				for i, p := range pods {
					p = r.runTrio(p)
					r.stop(p.Pod)
					pods[i] = p
				}
				for i, p := range pods {
					p.Pod = r.waitRestart(p.Pod)
					r.wantTrio(p, 1)
					pods[i] = p
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.kept = append(r.kept, pods...)
		})
	}
}

// testKill kills and restarts containerd. The pods of runOrders keep running and can restart, and new pods run the same
// images.
func (r *kubeletRig) testKill(orders [][]string) {
	if want := len(orders) * len(classes); len(r.kept) != want {
		r.T.Fatalf("got %d running pods, want %d", len(r.kept), want)
	}
	if err := r.Kill9(); err != nil {
		r.T.Fatal(err)
	}
	if err := r.Restart(r.Ctx, nil); err != nil {
		r.T.Fatal(err)
	}
	var again []trioPod
	for _, class := range classes {
		again = append(again, r.createTrio("after-"+r.kept[0].name, class, r.kept[0].trio))
	}
	for _, p := range again {
		r.runTrio(p)
	}
	// The new pods run, so kubelet's status of the old pods is from the restarted containerd too.
	for i, p := range r.kept {
		now := r.waitPod(p.Pod, "still runs", running)
		was := map[string]core.ContainerStatus{}
		for _, c := range p.Status.ContainerStatuses {
			was[c.Name] = c
		}
		for _, c := range now.Status.ContainerStatuses {
			if w := was[c.Name]; c.ContainerID != w.ContainerID || c.RestartCount != w.RestartCount {
				r.T.Errorf("pod %s: got container %s with %d restarts, want %s with %d", now.Name, c.ContainerID, c.RestartCount, w.ContainerID, w.RestartCount)
			}
		}
		r.stop(now)
		r.kept[i].Pod = now
	}
	for _, p := range r.kept {
		now := r.waitRestart(p.Pod)
		r.wantTrio(p, int(now.Status.ContainerStatuses[0].RestartCount))
	}
}
