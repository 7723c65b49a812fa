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

// containerOf is the name of the container with a pull policy.
func containerOf(pull core.PullPolicy) string { return strings.ToLower(string(pull)) }

// trio is what a pod of three containers runs, one for each pull policy. Each has an image of its own, so that none runs what
// the pull of another has left.
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

// pushTrio makes images whose USER is uid; 0 means that they have none.
func (r *kubeletRig) pushTrio(name string, uid int) trio {
	r.T.Helper()
	x := trio{name: name, uid: uid, refs: map[core.PullPolicy]string{}}
	for _, pull := range policies {
		x.refs[pull], _ = r.push("app/"+name+"-"+containerOf(pull)+":v1", x.options(pull))
	}
	return x
}

// createTrio makes a pod of a trio, with what else its spec is to have. What must not be pulled is on the node already, for the
// pod's class.
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

// wantTrio fails the test unless the containers print at their nth start what their class is to run.
func (r *kubeletRig) wantTrio(p trioPod, nth int) {
	r.T.Helper()
	for _, pull := range policies {
		r.wantLogOf(p.Pod, containerOf(pull), nth, line(p.class, p.options(pull), p.uid))
	}
}

// runTrio waits until a pod runs, and what it prints.
func (r *kubeletRig) runTrio(p trioPod) trioPod {
	r.T.Helper()
	p.Pod = r.waitPod(p.Pod, "runs", running)
	r.wantTrio(p, 0)
	return p
}

// orders are the classes in every order, and last none: all at once.
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

// testOrders runs the same images in every class, one after the other in every order and at once, under every pull policy. The
// pods stay for testKill.
func (r *kubeletRig) testOrders() {
	for _, order := range orders() {
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

// testKill kills containerd under the pods of testOrders. They go on, can be restarted, and new ones of the same images run after
// it is back.
func (r *kubeletRig) testKill() {
	if want := len(orders()) * len(classes); len(r.kept) != want {
		r.T.Fatalf("%d pods are there to live through it, not %d", len(r.kept), want)
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
	// containerd has answered for the new ones, so that what kubelet now says of the old ones is of the new containerd.
	for i, p := range r.kept {
		now := r.waitPod(p.Pod, "still runs", running)
		was := map[string]core.ContainerStatus{}
		for _, c := range p.Status.ContainerStatuses {
			was[c.Name] = c
		}
		for _, c := range now.Status.ContainerStatuses {
			if w := was[c.Name]; c.ContainerID != w.ContainerID || c.RestartCount != w.RestartCount {
				r.T.Errorf("pod %s runs container %s, restarted %d times, not %s, %d times", now.Name, c.ContainerID, c.RestartCount, w.ContainerID, w.RestartCount)
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
