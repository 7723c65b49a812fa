package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Pin is the state of an ImagePin.
type Pin struct {
	Digest digest.Digest
	// By is the node and the pod that created it. It is nil if a person did.
	By        *v1alpha1.Claimer
	CreatedAt time.Time
	// UID changes if the ImagePin is deleted and created again.
	UID  types.UID
	Name string
}

var imagePins = resource{path: "/apis/" + v1alpha1.GroupVersion.String(), name: v1alpha1.Resource, kind: "ImagePin"}

// Find returns the pin of an image for a revision, or nil if there is none. image is a normalized reference with a tag.
//
// If cached is true, the API server answers from its cache. So Find may miss a pin that was just created: [Client.Claim]
// then returns it.
//
// Errors: [imagepin.ForeignPin] (ErrFailedPrecondition), [imagepin.ClusterUnavailable] (ErrUnavailable),
// [imagepin.InvalidRequest] (ErrInvalidArgument), or context.Canceled.
func (c *Client) Find(ctx context.Context, owner Owner, image string, cached bool) (*Pin, error) {
	key, err := pinKey(owner, image)
	if err != nil {
		return nil, err
	}
	var pin *Pin
	err = c.run(ctx, forPin, func(ctx context.Context, s *session) error {
		pin, err = s.find(ctx, key, owner, image, cached)
		return err
	})
	if err != nil {
		return nil, withRef(err, image)
	}
	return pin, nil
}

// find returns nil if there is no pin.
func (s *session) find(ctx context.Context, key objectKey, owner Owner, image string, cached bool) (*Pin, error) {
	object := &v1alpha1.ImagePin{}
	err := s.read(ctx, s.get(imagePins, key, cached), key, object)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain(err, "get "+imagePins.describe(key), findPin)
	}
	return check(object, owner, image)
}

// Claim creates the pin of an image for a revision, with the digest d that the registry reports for the tag, on behalf of
// a pod of this node. If another node was first, it returns that node's pin, and created is false.
//
// If the API server asks the client to wait, Claim reads the pin from the cache of the API server before it tries again. As
// with Find, the cache may still have a pin that was just deleted.
//
// The timeout applies to the call as a whole: with the request for the name of the node at the first call, and for the
// pin of another node. A call that timed out may have created the pin; the next one then returns it with created false.
//
// Errors: as [Client.Find], and [imagepin.ClaimRefused] (ErrPermissionDenied) with the message of the API server, which
// names the rule that refused the pin.
func (c *Client) Claim(ctx context.Context, owner Owner, pod Pod, image string, d digest.Digest) (p Pin, created bool, err error) {
	key, err := pinKey(owner, image)
	if err != nil {
		return Pin{}, false, err
	}
	if err := pod.validate(); err != nil {
		return Pin{}, false, err
	}
	cl := &claim{key: key, owner: owner, pod: pod, image: image, digest: d}
	err = c.run(ctx, forPin, func(ctx context.Context, s *session) error {
		p, created, err = cl.run(ctx, s)
		return err
	})
	if err != nil {
		return Pin{}, false, withRef(err, image)
	}
	return p, created, nil
}

// claim is a call of Claim.
type claim struct {
	key    objectKey
	owner  Owner
	pod    Pod
	image  string
	digest digest.Digest
	// lost is true if there was no answer to a request that may have created the pin.
	lost bool
}

// maxClaims is how often a claim tries to create the pin, if the pin exists each time and is deleted before it is read.
const maxClaims = 3

// run can run again, on another connection: the name of the pin makes the requests idempotent.
func (c *claim) run(ctx context.Context, s *session) (p Pin, created bool, err error) {
	node, err := s.node(ctx)
	if err != nil {
		return Pin{}, false, err
	}
	object := c.object(node)
	for conflicts := 0; ; {
		made, err := s.create(ctx, c.key, object)
		if err == nil {
			return result(made, c.owner, c.image, true)
		}
		c.lost = c.lost || connectionLost(err) || serverFailed(err)
		failed := s.explain(err, "create "+imagePins.describe(c.key), createPin)
		// A conflict of another object, such as a ResourceQuota, has another reason.
		conflict := apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
		if conflict {
			conflicts++
		} else if !s.wait(ctx, err) {
			return Pin{}, false, failed
		}
		// During a wait, another node may have created the pin. The API server's cache answers that without admission and
		// etcd, which matters if all nodes wait. If the cache misses a new pin, or the read fails, the next request decides.
		winner, err := s.find(ctx, c.key, c.owner, c.image, conflicts == 0)
		if err != nil && (conflict || ctx.Err() != nil || failureOf(err).onOther()) {
			return Pin{}, false, err
		}
		if winner != nil {
			own := c.lost && winner.By != nil && *winner.By == *object.Spec.By && winner.Digest == c.digest
			return *winner, own, nil
		}
		if conflicts == maxClaims {
			return Pin{}, false, failed
		}
	}
}

// create sends a request that creates a pin, once.
func (s *session) create(ctx context.Context, key objectKey, object *v1alpha1.ImagePin) (*v1alpha1.ImagePin, error) {
	made := &v1alpha1.ImagePin{}
	post := s.rest.Post().AbsPath(imagePins.path).Namespace(key.namespace).Resource(imagePins.name).Body(object)
	if err := s.send(ctx, post, made); err != nil {
		return nil, err
	}
	return made, key.check(made)
}

func (c *claim) object(node string) *v1alpha1.ImagePin {
	return &v1alpha1.ImagePin{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.key.namespace, Name: c.key.name, OwnerReferences: []metav1.OwnerReference{c.owner.Reference},
		},
		Spec: v1alpha1.ImagePinSpec{
			Image: c.image, Digest: c.digest.String(), Owner: c.owner.Owner,
			By: &v1alpha1.Claimer{Node: node, Pod: c.pod.Name, PodUID: c.pod.UID},
		},
	}
}

func result(object *v1alpha1.ImagePin, owner Owner, image string, created bool) (Pin, bool, error) {
	pin, err := check(object, owner, image)
	if err != nil {
		return Pin{}, false, err
	}
	return *pin, created, nil
}

// check returns the pin of an object. The error is ForeignPin if the object is not the pin of the image and the owner, or
// has no digest. The name is a part of a hash, and a person can create an object with any name.
func check(object *v1alpha1.ImagePin, owner Owner, image string) (*Pin, error) {
	spec := object.Spec
	d, err := digest.Parse(spec.Digest)
	if spec.Image == image && spec.Owner.Same(owner.Owner) && err == nil {
		return &Pin{Digest: d, By: spec.By, CreatedAt: object.CreationTimestamp.Time, UID: object.UID, Name: object.Name}, nil
	}
	name := imagePins.describe(objectKey{object.Namespace, object.Name})
	e := &imagepin.Error{
		Reason: imagepin.ForeignPin, Class: errdefs.ErrFailedPrecondition,
		Hint: fmt.Sprintf("Delete it: kubectl delete imagepin -n %s %s", object.Namespace, object.Name),
	}
	switch {
	case spec.Image != image:
		e.Message = fmt.Sprintf("%s is for the image %s", name, imagepin.Bound(spec.Image, 512))
	case err != nil:
		e.Message = fmt.Sprintf("%s has an invalid digest %q", name, imagepin.Bound(spec.Digest, 128))
	default:
		e.Message = fmt.Sprintf("%s is for %s, not for %s", name, describe(spec.Owner), describe(owner.Owner))
	}
	return nil, e
}

func describe(o v1alpha1.Owner) string {
	text := fmt.Sprintf("%s %s with UID %s", kindOf(o), o.Name, o.UID)
	if o.Revision != "" {
		text += ", revision " + o.Revision
	}
	return text
}

// kindOf returns the kind of an owner, with its API version unless it is a controller of Kubernetes.
func kindOf(o v1alpha1.Owner) string {
	switch o.APIVersion {
	case "v1", "apps/v1", "batch/v1":
		return o.Kind
	}
	return o.APIVersion + " " + o.Kind
}

// pinKey returns the name of a pin.
func pinKey(owner Owner, image string) (objectKey, error) {
	key := objectKey{owner.Namespace, v1alpha1.Name(owner.Owner, image)}
	for _, name := range []string{owner.Namespace, owner.Name} {
		if err := segment(name); err != nil {
			return objectKey{}, imagepin.Invalid("owner", owner.Namespace+"/"+owner.Name, err)
		}
	}
	return key, nil
}
