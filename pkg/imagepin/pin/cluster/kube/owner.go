package kube

import (
	"context"
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Owner is the revision of a workload that a pod belongs to.
type Owner struct {
	v1alpha1.Owner
	Namespace string
	// Reference is the owner reference of the ImagePins of the revision: the ControllerRevision if there is one, else the
	// controller of the pod. Kubernetes deletes the ImagePins with this object.
	Reference metav1.OwnerReference
}

var (
	pods                = resource{path: "/api/v1", name: "pods", kind: "pod"}
	controllerRevisions = resource{path: "/apis/apps/v1", name: "controllerrevisions", kind: "ControllerRevision"}
)

// OwnerOf returns the revision of a workload that a pod belongs to, which never changes. It returns nil if there is none:
// no object controls the pod, or a Node does (a static pod), or no object can have the fields of its controller. The API
// server itself may be a static pod. So check the annotation kubernetes.io/config.source before calling OwnerOf.
//
// It reads the metadata of the pod, and that of its ControllerRevision if the pod has a revision. The API server allows a
// node to read its own pods.
//
// Errors: [imagepin.UnknownPod] (ErrNotFound) if the API server has no pod with this name and UID, [imagepin.ClaimRefused]
// (ErrPermissionDenied) if the node must not read the pod, which is temporary until the API server knows that the pod is
// bound to the node, [imagepin.ClusterUnavailable] (ErrUnavailable), [imagepin.InvalidRequest] (ErrInvalidArgument), or
// context.Canceled.
func (c *Client) OwnerOf(ctx context.Context, pod Pod) (*Owner, error) {
	if err := pod.validate(); err != nil {
		return nil, err
	}
	var owner *Owner
	err := c.run(ctx, forOwner, func(ctx context.Context, s *session) error {
		meta, err := s.pod(ctx, pod)
		if err != nil {
			return err
		}
		owner = ownerOf(meta)
		if owner == nil || owner.Revision == "" {
			return nil
		}
		return s.useControllerRevision(ctx, owner)
	})
	if err != nil {
		return nil, err
	}
	return owner, nil
}

// pod reads the metadata of a pod.
func (s *session) pod(ctx context.Context, pod Pod) (*metav1.PartialObjectMetadata, error) {
	key := objectKey{pod.Namespace, pod.Name}
	// The cache of the API server may be older than the pod.
	for _, cached := range []bool{true, false} {
		meta, err := s.metadata(ctx, pods, key, cached)
		switch {
		case absent(err):
			continue
		case err != nil:
			return nil, s.explain(err, "get "+pods.describe(key), general)
		// kubelet gives the sandbox of a static pod another UID than the API server gives its mirror pod.
		case meta.UID == pod.UID, isMirror(meta):
			return meta, nil
		}
	}
	return nil, unknownPod(pod)
}

func unknownPod(pod Pod) error {
	return &imagepin.Error{
		Reason: imagepin.UnknownPod, Class: errdefs.ErrNotFound,
		Message: fmt.Sprintf("the API server has no pod %s with UID %s", pod, pod.UID),
		Hint:    "The pod was deleted, or it was created without the Kubernetes API.",
	}
}

func isMirror(pod *metav1.PartialObjectMetadata) bool {
	_, ok := pod.Annotations[upstream.MirrorAnnotation]
	return ok
}

// ownerOf returns the owner of a pod, with the controller as the reference. It returns nil if there is none.
func ownerOf(pod *metav1.PartialObjectMetadata) *Owner {
	of, ok := v1alpha1.OwnerOf(pod)
	if !ok || !canExist(of) {
		return nil
	}
	owner := &Owner{Owner: of, Namespace: pod.Namespace, Reference: *metav1.GetControllerOf(pod)}
	owner.Reference.Controller = nil
	owner.Reference.BlockOwnerDeletion = new(bool)
	return owner
}

// The forms of the fields of objects that can control pods. An expression with the lengths would take 60 KB.
var (
	kindForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	uidForm  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// The maximum lengths of these fields in bytes. An APIVersion is a group, a slash and a version.
const maxKind, maxUID, maxAPIVersion = 63, 128, 317

// canExist reports whether an object can have the fields of an owner. The API server accepts any text in the
// ownerReferences of a pod, of any length. It becomes a part of paths, records and names.
func canExist(o v1alpha1.Owner) bool {
	return len(o.Kind) <= maxKind && len(o.UID) <= maxUID && len(o.APIVersion) <= maxAPIVersion &&
		kindForm.MatchString(o.Kind) && uidForm.MatchString(string(o.UID)) &&
		len(validation.IsDNS1123Subdomain(o.Name)) == 0 && len(validation.IsValidLabelValue(o.Revision)) == 0
}

// useControllerRevision makes the ControllerRevision of an owner its reference, if there is one that the owner controls.
// An owner without one, or one that the node cannot read, keeps its reference.
func (s *session) useControllerRevision(ctx context.Context, owner *Owner) error {
	key := objectKey{owner.Namespace, v1alpha1.ControllerRevisionName(owner.Owner)}
	for _, cached := range []bool{true, false} {
		revision, err := s.metadata(ctx, controllerRevisions, key, cached)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err):
			return nil
		case err != nil:
			return s.explain(err, "get "+controllerRevisions.describe(key), general)
		}
		if by := metav1.GetControllerOfNoCopy(revision); by != nil && by.UID == owner.UID {
			owner.Reference = metav1.OwnerReference{
				APIVersion: "apps/v1", Kind: "ControllerRevision", Name: revision.Name, UID: revision.UID, BlockOwnerDeletion: new(bool),
			}
		}
		return nil
	}
	return nil
}

// metadata reads the metadata of an object. If cached is true, the API server may answer from its cache, without etcd.
func (s *session) metadata(ctx context.Context, r resource, key objectKey, cached bool) (*metav1.PartialObjectMetadata, error) {
	req := s.get(r, key, cached).SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	meta := &metav1.PartialObjectMetadata{}
	return meta, s.read(ctx, req, key, meta)
}
