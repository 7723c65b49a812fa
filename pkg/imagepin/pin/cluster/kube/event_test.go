package kube

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// TestReport creates an event with the fields that the API server requires. One that exists is enough.
func TestReport(t *testing.T) {
	a := startServer(t)
	var got event
	status := 0
	a.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/apis/events.k8s.io/v1/namespaces/shop/events" {
			return false
		}
		switch status {
		case http.StatusConflict:
			refuse(w, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, "web"))
		case http.StatusForbidden:
			refuse(w, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "web", nil))
		default:
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			respond(w, http.StatusCreated, got)
		}
		return true
	}
	c, _ := a.client()
	e := Event{
		Namespace: "shop", Owner: v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: strings.Repeat("w", 253), UID: "1"},
		Type: Warning, Reason: "ImageTagMoved", Key: tag, Note: strings.Repeat("n", 4096),
		At: time.Now().Add(-time.Minute),
	}
	if err := c.Report(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got.APIVersion != "events.k8s.io/v1" || got.Kind != "Event" || got.ReportingInstance != nodeName || got.Regarding.Name != e.Owner.Name ||
		got.Regarding.UID != "1" || len(got.Note) > maxNote || got.Type != Warning || got.Action == "" || !got.EventTime.Time.Equal(e.At.Truncate(time.Microsecond)) {
		t.Errorf("got %+v", got)
	}
	if errs := validation.NameIsDNSSubdomain(got.Name, false); len(errs) > 0 {
		t.Errorf("name %q: %v", got.Name, errs)
	}
	status = http.StatusConflict
	if err := c.Report(t.Context(), e); err != nil {
		t.Errorf("the event exists: %v", err)
	}
	status = http.StatusForbidden
	if err := c.Report(t.Context(), e); !errdefs.IsPermissionDenied(err) {
		t.Errorf("got %v, want PermissionDenied", err)
	}
	other := e
	other.Key = "other"
	if e.name() == other.name() {
		t.Error("events with other keys have the same name")
	}
}

// TestFailedReport checks that an event that cannot be created does not stop other calls.
func TestFailedReport(t *testing.T) {
	a := startServer(t)
	a.on(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			return false
		}
		refuse(w, apierrors.NewTooManyRequests("the limit of events is reached", 3600))
		return true
	})
	c, _ := a.client()
	e := Event{Namespace: "shop", Owner: v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}, Type: Normal, Reason: "ImagePinned", Key: tag}
	wantUnavailable(t, c.Report(t.Context(), e), "the limit of events is reached")
	if _, err := c.Find(t.Context(), webOwner(), tag, true); err != nil {
		t.Error(err)
	}
}
