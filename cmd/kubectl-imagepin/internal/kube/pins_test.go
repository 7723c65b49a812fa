package kube

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

func TestServed(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: v1alpha1.Resource}
	for _, tc := range []struct {
		name string
		err  error
		want bool // ErrNotServed
	}{
		{"no error", nil, false},
		{"no object of that name", apierrors.NewNotFound(resource, "web.1"), false},
		{"no resource, object read", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "web.1", "404 page not found", 0, true), true},
		{"no resource, objects listed", apierrors.NewGenericServerResponse(http.StatusNotFound, "list", resource, "", "404 page not found", 0, true), true},
		{"no namespace", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), false},
		{"forbidden", apierrors.NewForbidden(resource, "web.1", errors.New("no")), false},
		{"no connection", errors.New("connection refused"), false},
	} {
		if got := served(tc.err); errors.Is(got, ErrNotServed) != tc.want || !tc.want && got != tc.err {
			t.Errorf("%s: got %v", tc.name, got)
		}
	}
}
