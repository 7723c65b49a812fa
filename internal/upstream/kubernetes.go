package upstream

// What kubelet writes to pods and containers, and what they are of.
const (
	// SeenAnnotation is the time at which kubelet saw the configuration of a pod. It has nanoseconds, so it identifies the pod.
	SeenAnnotation = "kubernetes.io/config.seen" // k8s.io/kubernetes/pkg/kubelet/types/pod_update.go: ConfigFirstSeenAnnotationKey
	// SourceAnnotation is the source of a pod. Pods of another one than SourceAPI are static, and the API server has mirrors of
	// them with other UIDs.
	SourceAnnotation = "kubernetes.io/config.source" // k8s.io/kubernetes/pkg/kubelet/types/pod_update.go: ConfigSourceAnnotationKey
	SourceAPI        = "api"                         // k8s.io/kubernetes/pkg/kubelet/types/pod_update.go: ApiserverSource
	// MirrorAnnotation is on the object in the API that represents a static pod.
	MirrorAnnotation = "kubernetes.io/config.mirror" // k8s.io/api/core/v1/annotation_key_constants.go: MirrorPodAnnotationKey
	// ContainerNameLabel is on each container of kubelet, and on no other one.
	ContainerNameLabel = "io.kubernetes.container.name" // k8s.io/kubelet/pkg/types/labels.go: KubernetesContainerNameLabel
	// RevisionLabel is the revision of a pod of a StatefulSet or DaemonSet, which can have several at a time.
	RevisionLabel = "controller-revision-hash" // k8s.io/api/apps/v1/types.go: ControllerRevisionHashLabelKey
)
