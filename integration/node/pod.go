package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeenAnnotation is the annotation that kubelet sets on every pod, with a different value for each.
const SeenAnnotation = "kubernetes.io/config.seen"

// ContainerNameLabel is a label that kubelet sets on every container.
const ContainerNameLabel = "io.kubernetes.container.name"

// PodOptions are the options of a pod. The zero value means the default handler and a unique name and UID.
type PodOptions struct {
	Name      string
	Namespace string // empty means default
	UID       string
	Handler   string
	Labels    map[string]string
	// Annotations are added to [SeenAnnotation], and can replace it.
	Annotations map[string]string
}

// Pod is a running pod sandbox.
type Pod struct {
	ID      string
	Handler string
	// Config is the configuration in the RunPodSandbox call. PullImage and CreateContainer need it too.
	Config *cri.PodSandboxConfig
}

// PodConfig returns the sandbox configuration of a pod, as kubelet creates it, on the host's network.
func (n *Node) PodConfig(opts PodOptions) *cri.PodSandboxConfig {
	seq := int(n.names.Add(1))
	if opts.Name == "" {
		opts.Name = "pod-" + strconv.Itoa(seq)
	}
	if opts.Namespace == "" {
		opts.Namespace = "default"
	}
	if opts.UID == "" {
		opts.UID = fmt.Sprintf("%s-%s-%d", opts.Namespace, opts.Name, seq)
	}
	annotations := map[string]string{SeenAnnotation: time.Now().Format(time.RFC3339Nano)}
	maps.Copy(annotations, opts.Annotations)
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: opts.Name, Namespace: opts.Namespace, Uid: opts.UID},
		Labels:       maps.Clone(opts.Labels),
		Annotations:  annotations,
		LogDirectory: n.Path("logs", opts.UID),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: cgroupParent(n.root),
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
			},
		},
	}
}

// RunPod runs a pod sandbox.
func (n *Node) RunPod(ctx context.Context, opts PodOptions) (*Pod, error) {
	config := n.PodConfig(opts)
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return nil, err
	}
	res, err := n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: opts.Handler})
	if err != nil {
		return nil, fmt.Errorf("RunPodSandbox (handler %q): %w", opts.Handler, err)
	}
	return &Pod{ID: res.PodSandboxId, Handler: opts.Handler, Config: config}, nil
}

// RemovePod stops and removes a pod with its containers.
func (n *Node) RemovePod(ctx context.Context, p *Pod) error {
	if _, err := n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return fmt.Errorf("StopPodSandbox: %w", err)
	}
	if _, err := n.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return fmt.Errorf("RemovePodSandbox: %w", err)
	}
	return nil
}

// RemovePods stops and removes every pod that the CRI lists.
func (n *Node) RemovePods(ctx context.Context) error {
	res, err := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range res.Items {
		errs = append(errs, n.RemovePod(ctx, &Pod{ID: p.Id}))
	}
	return errors.Join(errs...)
}

// ContainerOptions are the options of a container.
type ContainerOptions struct {
	Name string // empty means a unique name
	// Image is the image in the CreateContainer call. kubelet sends an image ID, crictl can also send a reference.
	Image string
	// UserImage is the reference in the pod's spec (user_specified_image).
	UserImage string
	// Handler is the handler in the image spec. kubelet does not send it.
	Handler string
	Labels  map[string]string
	Command []string
	Args    []string
	Env     map[string]string
	Mounts  []*cri.Mount
	// RunAsUser or RunAsUsername, if set, replaces the image's user.
	RunAsUser     *int64
	RunAsUsername string
}

// Container is a created container.
type Container struct {
	ID     string
	Pod    *Pod
	Config *cri.ContainerConfig
	log    string
	node   *Node
}

// ContainerConfig returns the configuration of a container.
func (n *Node) ContainerConfig(opts ContainerOptions) *cri.ContainerConfig {
	if opts.Name == "" {
		opts.Name = "container-" + strconv.Itoa(int(n.names.Add(1)))
	}
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: opts.Name},
		Image:    &cri.ImageSpec{Image: opts.Image, UserSpecifiedImage: opts.UserImage, RuntimeHandler: opts.Handler},
		Labels:   opts.Labels,
		Command:  opts.Command,
		Args:     opts.Args,
		Mounts:   opts.Mounts,
		LogPath:  opts.Name + ".log",
		Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}},
	}
	for k, v := range opts.Env {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: k, Value: []byte(v)})
	}
	c.Linux.SecurityContext.RunAsUsername = opts.RunAsUsername
	if opts.RunAsUser != nil {
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: *opts.RunAsUser}
	}
	return c
}

// CreateContainer creates a container and does not start it.
func (n *Node) CreateContainer(ctx context.Context, p *Pod, opts ContainerOptions) (*Container, error) {
	config := n.ContainerConfig(opts)
	res, err := n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
	if err != nil {
		return nil, fmt.Errorf("CreateContainer %s: %w", opts.Image, err)
	}
	return &Container{ID: res.ContainerId, Pod: p, Config: config, log: filepath.Join(p.Config.LogDirectory, config.LogPath), node: n}, nil
}

// RunContainer creates and starts a container and returns it with the first line it prints.
func (n *Node) RunContainer(ctx context.Context, p *Pod, opts ContainerOptions) (*Container, string, error) {
	c, err := n.CreateContainer(ctx, p, opts)
	if err != nil {
		return nil, "", err
	}
	if _, err := n.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID}); err != nil {
		return c, "", fmt.Errorf("StartContainer %s: %w", opts.Image, err)
	}
	lines, err := c.Output(ctx, 1)
	if err != nil {
		return c, "", err
	}
	return c, lines[0], nil
}

// Run runs one container in a new pod, removes both, and returns the first line that the container prints.
func (n *Node) Run(ctx context.Context, handler string, opts ContainerOptions) (string, error) {
	p, err := n.RunPod(ctx, PodOptions{Handler: handler})
	if err != nil {
		return "", err
	}
	_, line, err := n.RunContainer(ctx, p, opts)
	return line, errors.Join(err, n.RemovePod(ctx, p))
}

// Output waits until the container has printed at least the given number of lines, and returns all its lines. It fails
// if the container exits before.
func (c *Container) Output(ctx context.Context, atLeast int) ([]string, error) {
	exited := false
	for {
		lines, err := readLog(c.log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if len(lines) >= atLeast {
			return lines, nil
		}
		if exited {
			return lines, fmt.Errorf("container %s exited after %d lines, want %d: %q", c.Config.Metadata.Name, len(lines), atLeast, lines)
		}
		status, err := c.Status(ctx)
		if err != nil {
			return lines, err
		}
		// Read the log once more, because the container may have printed its last lines since.
		exited = status.State == cri.ContainerState_CONTAINER_EXITED
		if exited {
			continue
		}
		if err := pause(ctx); err != nil {
			return lines, fmt.Errorf("waiting for the output of %s: %w", c.Config.Metadata.Name, err)
		}
	}
}

// Status returns the container's status.
func (c *Container) Status(ctx context.Context) (*cri.ContainerStatus, error) {
	res, err := c.node.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		return nil, fmt.Errorf("ContainerStatus: %w", err)
	}
	return res.Status, nil
}

// Remove stops and removes the container.
func (c *Container) Remove(ctx context.Context) error {
	if _, err := c.node.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.ID, Timeout: 5}); err != nil {
		return fmt.Errorf("StopContainer: %w", err)
	}
	if _, err := c.node.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		return fmt.Errorf("RemoveContainer: %w", err)
	}
	return nil
}

// readLog reads the complete lines of standard output and error from a log in the CRI's format: time, stream, P or F,
// text.
func readLog(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []string
	partial := ""
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) < 4 || !strings.HasSuffix(line, "\n") {
			continue
		}
		partial += fields[3]
		if fields[2] == "F" {
			lines = append(lines, partial)
			partial = ""
		}
	}
	return lines, nil
}

// pause waits for the polling interval. It is short, because the calls that tests wait for take milliseconds.
func pause(ctx context.Context) error {
	t := time.NewTimer(3 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// PullOptions are the options of a pull.
type PullOptions struct {
	Handler     string
	Annotations map[string]string
	Auth        *cri.AuthConfig
	// Pod is the pod that the image is pulled for. The call has its sandbox configuration.
	Pod *Pod
}

// Pull pulls an image for a handler through the CRI and returns the image ID. If handler is empty, the call has none.
func (n *Node) Pull(ctx context.Context, ref, handler string) (string, error) {
	return n.PullWith(ctx, ref, PullOptions{Handler: handler})
}

// PullWith is [Node.Pull] with options.
func (n *Node) PullWith(ctx context.Context, ref string, opts PullOptions) (string, error) {
	req := &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: ref, UserSpecifiedImage: ref, RuntimeHandler: opts.Handler, Annotations: opts.Annotations},
		Auth:  opts.Auth,
	}
	if opts.Pod != nil {
		req.SandboxConfig = opts.Pod.Config
	}
	res, err := n.images.PullImage(ctx, req)
	if err != nil {
		return "", err
	}
	return res.ImageRef, nil
}

// ImageStatus returns an image from the CRI, or nil if it is absent.
func (n *Node) ImageStatus(ctx context.Context, ref, handler string) (*cri.Image, error) {
	res, err := n.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: handler}})
	if err != nil {
		return nil, err
	}
	return res.Image, nil
}

// ListImages returns the images that the CRI lists.
func (n *Node) ListImages(ctx context.Context) ([]*cri.Image, error) {
	res, err := n.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	return res.Images, nil
}

// RemoveImage removes an image through the CRI.
func (n *Node) RemoveImage(ctx context.Context, ref, handler string) error {
	_, err := n.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: handler}})
	return err
}
