package seed

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// maxAttempts is how often [Seeder.Seed] reads an ImagePin that others create, change or delete at the same time.
const maxAttempts = 5

// Pins reads and writes ImagePins.
type Pins interface {
	Get(ctx context.Context, namespace, name string) (*v1alpha1.ImagePin, error)
	// Create fails with AlreadyExists if there is an ImagePin of that name.
	Create(ctx context.Context, pin *v1alpha1.ImagePin, dryRun bool) (*v1alpha1.ImagePin, error)
	// Move fails with Conflict if the ImagePin has changed since it was read.
	Move(ctx context.Context, pin *v1alpha1.ImagePin, digest string, dryRun bool) (*v1alpha1.ImagePin, error)
}

// Seeder creates ImagePins that do not exist yet.
type Seeder struct {
	Pins Pins
	// Force moves ImagePins that have another digest.
	Force bool
	// Offline sends no requests that write.
	Offline bool
	// DryRun makes the API server only simulate requests that write.
	DryRun bool
}

// Seed makes the ImagePin of an image have a digest: it creates it, or moves it with Force. The creation decides between
// this call and nodes that claim at the same time. It returns the result for the image.
func (s *Seeder) Seed(ctx context.Context, pin *v1alpha1.ImagePin) (Item, error) {
	item := Item{Namespace: pin.Namespace, Owner: pin.Spec.Owner, Image: pin.Spec.Image, Digest: pin.Spec.Digest, ImagePin: pin.Name}
	var err error
	for range maxAttempts {
		item.Status, err = s.try(ctx, pin, &item)
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			break
		}
	}
	return item, err
}

// try is one attempt. It fails with AlreadyExists, Conflict or NotFound if somebody else writes the ImagePin at the same
// time.
func (s *Seeder) try(ctx context.Context, pin *v1alpha1.ImagePin, item *Item) (Status, error) {
	item.Other, item.By = "", nil
	there, err := s.Pins.Get(ctx, pin.Namespace, pin.Name)
	if apierrors.IsNotFound(err) {
		if !s.Offline {
			if _, err := s.Pins.Create(ctx, pin, s.DryRun); err != nil {
				return "", err
			}
		}
		return Created, nil
	}
	if err != nil {
		return "", err
	}
	if there.Spec.Image != pin.Spec.Image || !there.Spec.Owner.Same(pin.Spec.Owner) {
		return "", fmt.Errorf("imagepin %s is of another image or owner: %s of %s/%s", there.Name, there.Spec.Image, there.Spec.Owner.Kind, there.Spec.Owner.Name)
	}
	if there.Spec.Digest == pin.Spec.Digest {
		return Unchanged, nil
	}
	item.Other, item.By = there.Spec.Digest, there.Spec.By
	if !s.Force {
		return Conflict, nil
	}
	if !s.Offline {
		if _, err := s.Pins.Move(ctx, there, pin.Spec.Digest, s.DryRun); err != nil {
			return "", err
		}
	}
	return Moved, nil
}
