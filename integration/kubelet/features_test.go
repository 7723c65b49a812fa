package kubelet

import (
	"errors"
	"os"
	"strconv"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

// features gives pods a network namespace, which other tests do not: a pod in a user namespace cannot use the node's network.
const features = policy + `
[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = false
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    use_internal_loopback = true
`

// networkPlugin is a CNI plugin that reports an address and sets up nothing: the pods send nothing.
const networkPlugin = `#!/bin/sh
echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"192.0.2.1/32","interface":0}]}'
`

// TestFeatures runs pods with features of Kubernetes that change how containerd mounts an image, in both modes.
func TestFeatures(t *testing.T) {
	t.Parallel()
	for _, mode := range []node.Mode{node.Plugin, node.Serve} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := newRigWith(t, "features-"+string(mode), node.Options{Mode: mode, Extra: features}, func(n *node.Node) (cluster.KubeletOptions, error) {
				// The root of a pod in a user namespace is another user, who needs access to the path of its files.
				return cluster.KubeletOptions{}, errors.Join(os.Chmod(n.Root(), 0o711), os.WriteFile(n.Path("cni", "bin", "none"), []byte(networkPlugin), 0o755))
			})
			t.Run("cases", func(t *testing.T) {
				for _, c := range []struct {
					name string
					test func(*kubeletRig)
				}{
					{"userns", (*kubeletRig).testUserNamespaces},
					{"subpaths", (*kubeletRig).testSubPaths},
				} {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						c.test(r.in(t))
					})
				}
			})
			if !t.Failed() {
				t.Run("selinux", func(t *testing.T) { r.in(t).testSELinux() })
			}
		})
	}
}

// reader returns a pod of the revision one with one container, which is not restarted and prints files.
func (r *kubeletRig) reader(name, class, image string, files ...string) *core.Pod {
	p := r.pod(name+"-"+title(class), class, image, core.PullAlways)
	p.Labels = map[string]string{"pod-template-hash": "one"}
	p.Spec.RestartPolicy = core.RestartPolicyNever
	p.Spec.Containers[0].Args = append([]string{"cat"}, files...)
	return p
}

// mount mounts an image into the container of a pod.
func mount(p *core.Pod, image, path, subPath string) {
	name := "v" + strconv.Itoa(len(p.Spec.Volumes))
	p.Spec.Volumes = append(p.Spec.Volumes, core.Volume{Name: name, VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: image}}})
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{Name: name, MountPath: path, SubPath: subPath})
}

// terminated is the condition that a pod whose containers are not restarted has ended.
func terminated(p *core.Pod, _ core.ContainerStatus) bool {
	return p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed
}
