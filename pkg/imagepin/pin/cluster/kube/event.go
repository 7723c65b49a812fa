package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// EventType is the type of an Event of Kubernetes.
type EventType string

const (
	// Normal is for information.
	Normal EventType = "Normal"
	// Warning is for what a person may want to act on.
	Warning EventType = "Warning"
)

// Event is what happens to the pin of an owner. kubectl describe shows it with the owner.
type Event struct {
	Namespace string
	Owner     v1alpha1.Owner
	Type      EventType
	// Reason is why, in UpperCamelCase, for example ImagePinned.
	Reason string
	// Key identifies the event among those of its owner and reason. Of several events with the same key, also of several
	// nodes, the API server keeps the first until it expires.
	Key string
	// Note says what happened, in up to 1 KiB.
	Note string
	// At is when it happened.
	At time.Time
}

const (
	// reportingController is the name by which imagepin reports events.
	reportingController = "imagepin.io/imagepin"
	// maxNote is the maximum length of a note, in bytes (NoteLengthLimit in pkg/apis/core/validation).
	maxNote = 1024
	// maxEventOwner is how much of the owner's name the name of an event has, so that it is a valid name.
	maxEventOwner = 230
)

var (
	eventsV1 = schema.GroupVersion{Group: "events.k8s.io", Version: "v1"}
	events   = resource{path: "/apis/events.k8s.io/v1", name: "events", kind: "Event"}
)

// event has the fields that are used here of the Event of k8s.io/api/events/v1.
type event struct {
	metav1.TypeMeta     `json:",inline"`
	metav1.ObjectMeta   `json:"metadata"`
	EventTime           metav1.MicroTime `json:"eventTime"`
	ReportingController string           `json:"reportingController"`
	ReportingInstance   string           `json:"reportingInstance"`
	Action              string           `json:"action"`
	Reason              string           `json:"reason"`
	Regarding           regarding        `json:"regarding"`
	Note                string           `json:"note"`
	Type                EventType        `json:"type"`
}

// regarding is the object that an event is about, an ObjectReference of k8s.io/api/core/v1.
type regarding struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// DeepCopyObject implements runtime.Object.
func (e *event) DeepCopyObject() runtime.Object {
	c := *e
	c.ObjectMeta = *e.ObjectMeta.DeepCopy()
	return &c
}

// Report creates an event, unless there is one with the same owner, reason and key.
//
// Errors: [imagepin.ClaimRefused] (ErrPermissionDenied), [imagepin.ClusterUnavailable] (ErrUnavailable), or
// context.Canceled.
func (c *Client) Report(ctx context.Context, e Event) error {
	return c.run(ctx, forEvent, func(ctx context.Context, s *session) error {
		node, err := s.node(ctx)
		if err != nil {
			return err
		}
		key := objectKey{e.Namespace, e.name()}
		object := &event{
			TypeMeta:   metav1.TypeMeta{APIVersion: eventsV1.String(), Kind: events.kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: key.namespace, Name: key.name}, EventTime: metav1.NewMicroTime(e.At),
			ReportingController: reportingController, ReportingInstance: imagepin.Bound(node, 128), Action: e.Reason, Reason: e.Reason,
			Regarding: regarding{APIVersion: e.Owner.APIVersion, Kind: e.Owner.Kind, Namespace: e.Namespace, Name: e.Owner.Name, UID: e.Owner.UID},
			Note:      imagepin.Bound(e.Note, maxNote), Type: e.Type,
		}
		err = s.do(ctx, s.rest.Post().AbsPath(events.path).Namespace(key.namespace).Resource(events.name).Body(object), &event{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return s.explain(err, "create "+events.describe(key), general)
		}
		return nil
	})
}

// name returns the name of the object of an event.
func (e Event) name() string {
	sum := sha256.Sum256([]byte(string(e.Owner.UID) + "\x00" + e.Reason + "\x00" + e.Key))
	name := e.Owner.Name
	if len(name) > maxEventOwner {
		name = strings.TrimRight(name[:maxEventOwner], "-.")
	}
	return name + "." + hex.EncodeToString(sum[:8])
}
