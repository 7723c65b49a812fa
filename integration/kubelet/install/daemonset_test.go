// Package install installs imagepin on a node with the DaemonSets of contrib/kubernetes.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/version"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// timeout allows for restarts of containerd and kubelet on a busy host.
const timeout = 1 * time.Minute

const manifests = "../../../contrib/kubernetes/"

// TestDaemonSets installs imagepin in both modes on a node that runs a pod, and removes it, by changing the node's label.
func TestDaemonSets(t *testing.T) {
	d := newDebian(t)
	image := d.reg.Ref("imagepin/node:v0.1.0")
	testkit.Push(t, d.reg, "imagepin/node:v0.1.0", nodeImage(t))
	testkit.Push(t, d.reg, "app:v1", testkit.AppIndex(t, images.Options{Version: "v1"}, images.HostPlatform()))
	for _, file := range []string{"install.yaml", "remove.yaml"} {
		d.create(file, image)
	}
	first := d.runPod("first", d.reg.Ref("app:v1"))
	config := d.Run("cat /var/lib/kubelet/config.yaml")
	for _, mode := range []struct{ name, socket string }{{"serve", "/run/imagepin/imagepin.sock"}, {"plugin", "/run/containerd/containerd.sock"}} {
		d.label(mode.name)
		d.awaitDaemonSet("imagepin-" + mode.name)
		d.awaitReady()
		if got := d.Run("cat /var/lib/kubelet/config.yaml"); !strings.Contains(got, "unix://"+mode.socket) {
			t.Errorf("mode %s: got kubelet's configuration\n%s", mode.name, got)
		}
		d.runPod("with-"+mode.name, d.reg.Ref("app:v1"))
		if out := d.Run("/opt/imagepin/bin/imagepin --address " + mode.socket + " images"); !strings.Contains(out, d.reg.Ref("app:v1")) {
			t.Errorf("mode %s: got images\n%s", mode.name, out)
		}
		d.wantSame(first)
		if mode.name == "serve" {
			d.wantDocumented("kubectl -n kube-system logs daemonset/imagepin-serve -c install", "imagepin-serve-*/install")
		}

		d.label("none")
		d.awaitDaemonSet("imagepin-remove")
		d.awaitReady()
		if got := d.Run("cat /var/lib/kubelet/config.yaml"); got != config {
			t.Errorf("after the removal from mode %s: got kubelet's configuration\n%s", mode.name, got)
		}
		if left := d.Run("find /opt /etc /usr /var/lib/imagepin -name '*imagepin*' 2>/dev/null || true"); left != "" {
			t.Errorf("after the removal from mode %s: left\n%s", mode.name, left)
		}
		d.runPod("after-"+mode.name, d.reg.Ref("app:v1"))
		d.wantSame(first)
	}
}

// wantDocumented fails the test unless docs/install.md has the log of a container as the output of a command.
func (d *debian) wantDocumented(command, container string) {
	d.t.Helper()
	doc, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		d.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "\n$ "+command+"\n")
	want, _, _ := strings.Cut(rest, "```")
	// Each line begins with a time, the stream and whether it is whole.
	got := d.Run("cut -d ' ' -f 4- /var/log/pods/kube-system_" + container + "/0.log")
	if got = strings.ReplaceAll(got, version.Version, "0.1.0"); !ok || got != want {
		d.t.Errorf("docs/install.md has\n%s\nwant\n%s", want, got)
	}
}

// create creates the DaemonSets in a manifest, with the image of the test.
func (d *debian) create(file, image string) {
	d.t.Helper()
	text, err := os.ReadFile(manifests + file)
	if err != nil {
		d.t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("registry.example.com/imagepin/node:v0.1.0"), []byte(image))
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var object json.RawMessage
		if err := documents.Decode(&object); err == io.EOF {
			return
		} else if err != nil {
			d.t.Fatal(err)
		}
		if err := d.kube.Do(d.ctx, "POST", "/apis/apps/v1/namespaces/kube-system/daemonsets?fieldValidation=Strict", object, nil); err != nil {
			d.t.Fatalf("%s: %v", file, err)
		}
	}
}

// label sets the node's label imagepin.io/mode.
func (d *debian) label(mode string) {
	d.t.Helper()
	patch := map[string]any{"metadata": map[string]any{"labels": map[string]string{"imagepin.io/mode": mode}}}
	if err := d.kube.Do(d.ctx, "PATCH", "/api/v1/nodes/"+worker, patch, nil); err != nil {
		d.t.Fatal(err)
	}
}

// awaitDaemonSet waits until a DaemonSet has one pod and it is ready, and the others have none.
func (d *debian) awaitDaemonSet(name string) {
	d.t.Helper()
	var pods core.PodList
	defer func() {
		if d.t.Failed() {
			for _, p := range pods.Items {
				status, _ := json.Marshal(p.Status)
				d.t.Logf("%s: %s", p.Name, status)
			}
		}
	}()
	testkit.EventuallyIn(d.t, timeout, "the pod of "+name+" is ready", func(ctx context.Context) (bool, error) {
		if err := d.kube.Do(ctx, "GET", "/api/v1/namespaces/kube-system/pods", nil, &pods); err != nil {
			return false, nil
		}
		var all apps.DaemonSetList
		if err := d.kube.Do(ctx, "GET", "/apis/apps/v1/namespaces/kube-system/daemonsets", nil, &all); err != nil {
			return false, nil
		}
		for _, ds := range all.Items {
			want := int32(0)
			if ds.Name == name {
				want = 1
			}
			if s := ds.Status; s.NumberReady != want || s.CurrentNumberScheduled != want || s.NumberMisscheduled != 0 {
				return false, nil
			}
		}
		return true, nil
	})
}

// runPod runs a pod with the host's network, and waits until it runs.
func (d *debian) runPod(name, image string) *core.Pod {
	d.t.Helper()
	p := &core.Pod{}
	p.Name = name
	automount := false
	p.Spec = core.PodSpec{
		NodeName: worker, HostNetwork: true, AutomountServiceAccountToken: &automount,
		Containers: []core.Container{{Name: "app", Image: image, ImagePullPolicy: core.PullAlways}},
	}
	if err := d.kube.CreatePod(d.ctx, p); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	defer cancel()
	running, err := d.kube.WaitPod(ctx, name, func(p *core.Pod) (bool, error) { return p.Status.Phase == core.PodRunning, nil })
	if err != nil {
		d.t.Fatal(err)
	}
	return running
}

// wantSame fails the test unless the container of a pod still runs.
func (d *debian) wantSame(p *core.Pod) {
	d.t.Helper()
	var now core.Pod
	if err := d.kube.Do(d.ctx, "GET", "/api/v1/namespaces/default/pods/"+p.Name, nil, &now); err != nil {
		d.t.Fatal(err)
	}
	was, is := p.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
	if is.ContainerID != was.ContainerID || is.RestartCount != 0 || is.State.Running == nil {
		d.t.Errorf("pod %s was %+v, is %+v", p.Name, was, is)
	}
}
