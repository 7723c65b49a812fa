// Package explain says, for each container of a revision, which ImagePin applies and what the pods run. It reads objects
// and sends no requests.
package explain

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// Explanation is what applies to the containers of a revision.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`

	Namespace string `json:"namespace"`
	// Owner is the revision. It is nil for a pod without a controller.
	Owner      *v1alpha1.Owner `json:"owner,omitempty"`
	Containers []Container     `json:"containers"`
}

// Container is a container or an image volume.
type Container struct {
	workload.Container `json:",inline"`
	// Pin is the ImagePin that applies. If it is nil, Reason says why.
	Pin    *Pin   `json:"pin,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Tag is what the tag of the ImagePin resolves to now. It is nil if there is no ImagePin, or before AddTags.
	Tag *Tag `json:"tag,omitempty"`
	// Running is what the pods run. It is empty if no pod reports a digest.
	Running []Running `json:"running"`
}

// Pin is an ImagePin.
type Pin struct {
	Name    string            `json:"name"`
	Image   string            `json:"image"`
	Digest  string            `json:"digest"`
	Created metav1.Time       `json:"created"`
	By      *v1alpha1.Claimer `json:"by,omitempty"`
	// Moved is the last change of the digest after the creation, if there is one.
	Moved *Change `json:"moved,omitempty"`
}

// Change is who changed a field, and when.
type Change struct {
	Manager string      `json:"manager"`
	Time    metav1.Time `json:"time"`
}

// Tag is what a tag resolves to.
type Tag struct {
	// Digest is empty if the tag cannot be resolved. Then Error says why.
	Digest string `json:"digest,omitempty"`
	Error  string `json:"error,omitempty"`
	// Differs reports whether the digest is not that of the ImagePin. It is nil if there is no digest.
	Differs *bool `json:"differs,omitempty"`
}

// Running is an image that pods run.
type Running struct {
	workload.Build `json:",inline"`
	// Differs reports whether the digest is not that of the ImagePin. It is nil if there is no ImagePin, or if the digest
	// is that of a configuration, which cannot be compared.
	Differs *bool `json:"differs,omitempty"`
}

// Revision is what to explain.
type Revision struct {
	Namespace string
	// Owner is nil for a pod without a controller.
	Owner *v1alpha1.Owner
	// Template is the pod template. If it is nil, the containers are those of the pods.
	Template *corev1.PodSpec
	// Annotations are those of the pods.
	Annotations map[string]string
	Pods        []corev1.Pod
	// Pins are the ImagePins of the owner.
	Pins []v1alpha1.ImagePin
}

// Of explains a revision.
func Of(r Revision) *Explanation {
	e := &Explanation{Namespace: r.Namespace, Owner: r.Owner, Containers: []Container{}}
	for _, c := range containers(r) {
		x := Container{Container: c, Running: []Running{}}
		x.Pin, x.Reason = pinOf(r, c.Image)
		for _, build := range r.builds(c) {
			x.Running = append(x.Running, Running{Build: build, Differs: differs(x.Pin, build)})
		}
		e.Containers = append(e.Containers, x)
	}
	return e
}

// PinnedImages returns the images of the ImagePins that apply, one for each container.
func (e *Explanation) PinnedImages() []string {
	var images []string
	for _, c := range e.Containers {
		if c.Pin != nil {
			images = append(images, c.Pin.Image)
		}
	}
	return images
}

// AddTags adds what the tags of the ImagePins resolve to.
func (e *Explanation) AddTags(results map[string]registry.Result) {
	for i := range e.Containers {
		c := &e.Containers[i]
		if c.Pin == nil {
			continue
		}
		r := results[c.Pin.Image]
		c.Tag = &Tag{Digest: r.Digest, Error: r.Reason}
		if r.Digest != "" {
			c.Tag.Differs = new(r.Digest != c.Pin.Digest)
		}
	}
}

func containers(r Revision) []workload.Container {
	if r.Template != nil {
		return workload.Containers(r.Template)
	}
	var all []workload.Container
	seen := make(map[workload.Container]bool)
	for i := range r.Pods {
		for _, c := range workload.Containers(&r.Pods[i].Spec) {
			if !seen[c] {
				all, seen[c] = append(all, c), true
			}
		}
	}
	return all
}

// pinOf returns the ImagePin of an image, or why there is none.
func pinOf(r Revision, image string) (*Pin, string) {
	parsed, err := workload.ParseImage(image)
	if err != nil {
		return nil, err.Error()
	}
	tagged, ok := parsed.Pinnable()
	switch {
	case !ok:
		return nil, "the image names a digest"
	case r.Owner == nil:
		return nil, "the pod has no controller"
	}
	name := v1alpha1.Name(*r.Owner, tagged)
	for _, p := range r.Pins {
		if p.Name == name {
			return &Pin{Name: p.Name, Image: p.Spec.Image, Digest: p.Spec.Digest, Created: p.CreationTimestamp, By: p.Spec.By, Moved: moved(&p)}, ""
		}
	}
	return nil, fmt.Sprintf("there is no ImagePin %s%s", name, optedOut(r.Annotations))
}

const (
	// consistencyAnnotation is ConsistencyAnnotation of package policy, which the plugin does not import: its dependencies are those
	// of a node.
	consistencyAnnotation = "io.imagepin.version-consistency"
	// maxAnnotation is how much of an annotation is shown, in bytes.
	maxAnnotation = 256
)

// optedOut names the annotation of pods that can be why an image has no ImagePin. The rules of the nodes decide whether it applies.
func optedOut(annotations map[string]string) string {
	text, ok := annotations[consistencyAnnotation]
	if !ok {
		return ""
	}
	if len(text) > maxAnnotation {
		text = strings.ToValidUTF8(text[:maxAnnotation], "") + "…"
	}
	return fmt.Sprintf("; the pods have the annotation %s: %q", consistencyAnnotation, text)
}

// moved returns the last change of the digest of an ImagePin after its creation. The API server counts the changes of
// the spec, and records who manages a field since when.
func moved(p *v1alpha1.ImagePin) *Change {
	if p.Generation <= 1 {
		return nil
	}
	for _, m := range p.ManagedFields {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.Time != nil && m.FieldsV1 != nil && json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec["f:digest"] != nil {
			return &Change{Manager: m.Manager, Time: *m.Time}
		}
	}
	return nil
}

// builds returns what the pods run in a container. A webhook may have changed the image of the template in some pods.
func (r *Revision) builds(c workload.Container) []workload.Build {
	var b workload.Builds
	for i := range r.Pods {
		for _, running := range workload.RunningIn(&r.Pods[i]) {
			if running.Name == c.Name && running.Type == c.Type && (r.Template != nil || running.Image == c.Image) {
				b.Add(running.ImageID, &r.Pods[i])
			}
		}
	}
	return b.List()
}

func differs(p *Pin, b workload.Build) *bool {
	if p == nil || b.Of != workload.OfManifest {
		return nil
	}
	return new(b.Digest != p.Digest)
}
