package workload

import corev1 "k8s.io/api/core/v1"

// ContainerType is which field of a pod has the image.
type ContainerType string

// The types of containers, and of a volume with an image.
const (
	InitContainer      ContainerType = "initContainer"
	RegularContainer   ContainerType = "container"
	EphemeralContainer ContainerType = "ephemeralContainer"
	ImageVolume        ContainerType = "volume"
)

// Container is a container or an image volume of a pod.
type Container struct {
	Name string        `json:"name"`
	Type ContainerType `json:"type"`
	// Image is the reference as the pod names it.
	Image string `json:"image"`
	// PullPolicy is empty if the API server has not defaulted it.
	PullPolicy corev1.PullPolicy `json:"-"`
}

// Containers returns the containers and the image volumes of a pod or of a pod template, in the order in which they
// start.
func Containers(spec *corev1.PodSpec) []Container {
	var all []Container
	for _, v := range spec.Volumes {
		if v.Image != nil && v.Image.Reference != "" {
			all = append(all, Container{Name: v.Name, Type: ImageVolume, Image: v.Image.Reference, PullPolicy: v.Image.PullPolicy})
		}
	}
	for _, c := range spec.InitContainers {
		all = append(all, Container{Name: c.Name, Type: InitContainer, Image: c.Image, PullPolicy: c.ImagePullPolicy})
	}
	for _, c := range spec.Containers {
		all = append(all, Container{Name: c.Name, Type: RegularContainer, Image: c.Image, PullPolicy: c.ImagePullPolicy})
	}
	for _, c := range spec.EphemeralContainers {
		all = append(all, Container{Name: c.Name, Type: EphemeralContainer, Image: c.Image, PullPolicy: c.ImagePullPolicy})
	}
	return all
}

// key identifies a container in its pod.
type key struct {
	typ  ContainerType
	name string
}

// imageIDs returns the imageIDs that the status of a pod reports.
func imageIDs(status *corev1.PodStatus) map[key]string {
	ids := make(map[key]string)
	for typ, statuses := range map[ContainerType][]corev1.ContainerStatus{
		InitContainer: status.InitContainerStatuses, RegularContainer: status.ContainerStatuses, EphemeralContainer: status.EphemeralContainerStatuses,
	} {
		for _, s := range statuses {
			ids[key{typ, s.Name}] = s.ImageID
			for _, m := range s.VolumeMounts {
				if m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
					ids[key{ImageVolume, m.Name}] = m.VolumeStatus.Image.ImageRef
				}
			}
		}
	}
	return ids
}

// Running is a container and the image that it runs.
type Running struct {
	Container
	ImageID ImageID
	// Repository is that of the imageID, as the runtime reports it. It is empty for the digest of a configuration.
	Repository string
}

// RunningIn returns what the containers of a pod run, as its status reports it. It omits a container whose status has no
// imageID, as before its image is pulled, and one whose imageID has no digest. It returns nothing for a pod that has
// finished.
func RunningIn(pod *corev1.Pod) []Running {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	ids := imageIDs(&pod.Status)
	var running []Running
	for _, c := range Containers(&pod.Spec) {
		reported := ids[key{c.Type, c.Name}]
		if id, ok := ParseImageID(reported); ok {
			running = append(running, Running{Container: c, ImageID: id, Repository: repositoryOf(reported)})
		}
	}
	return running
}
