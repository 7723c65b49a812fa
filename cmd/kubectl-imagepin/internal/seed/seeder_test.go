package seed

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

const (
	image   = "registry.example.com/shop/web:v7"
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	digestC = "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
)

var resource = v1alpha1.GroupVersion.WithResource(v1alpha1.Resource).GroupResource()

// onePin has at most one ImagePin. others are what others do after each time that it is read.
type onePin struct {
	pin    *v1alpha1.ImagePin
	others []func(*onePin)
	// writes are requests that write, those of dry runs apart.
	writes, dryRuns int
	version         int
	refuse          error
}

func (p *onePin) store(pin *v1alpha1.ImagePin) {
	p.version++
	p.pin = pin.DeepCopy()
	p.pin.ResourceVersion = string(rune('0' + p.version))
}

func (p *onePin) Get(_ context.Context, _, name string) (*v1alpha1.ImagePin, error) {
	pin := p.pin
	if len(p.others) > 0 {
		defer p.others[0](p)
		p.others = p.others[1:]
	}
	if pin == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return pin.DeepCopy(), nil
}

func (p *onePin) Create(_ context.Context, pin *v1alpha1.ImagePin, dryRun bool) (*v1alpha1.ImagePin, error) {
	switch {
	case p.refuse != nil:
		return nil, p.refuse
	case p.pin != nil:
		return nil, apierrors.NewAlreadyExists(resource, pin.Name)
	case dryRun:
		p.dryRuns++
		return pin, nil
	}
	p.writes++
	p.store(pin)
	return p.pin, nil
}

func (p *onePin) Move(_ context.Context, pin *v1alpha1.ImagePin, digest string, dryRun bool) (*v1alpha1.ImagePin, error) {
	switch {
	case p.pin == nil:
		return nil, apierrors.NewNotFound(resource, pin.Name)
	case p.pin.ResourceVersion != pin.ResourceVersion:
		return nil, apierrors.NewConflict(resource, pin.Name, errors.New("changed"))
	case dryRun:
		p.dryRuns++
		return pin, nil
	}
	p.writes++
	moved := p.pin.DeepCopy()
	moved.Spec.Digest = digest
	p.store(moved)
	return p.pin, nil
}

func pinOf(digest string) *v1alpha1.ImagePin {
	owner := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "1"}
	return &v1alpha1.ImagePin{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.Name(owner, image)},
		Spec:       v1alpha1.ImagePinSpec{Image: image, Digest: digest, Owner: owner},
	}
}

// Others create, move and delete the ImagePin between the requests of Seed. It never overwrites what it has not read.
func TestSeedAmongOthers(t *testing.T) {
	by := &v1alpha1.Claimer{Node: "n1", Pod: "web-1-x", PodUID: "2"}
	claim := func(digest string) func(*onePin) {
		return func(p *onePin) {
			pin := pinOf(digest)
			pin.Spec.By = by
			p.store(pin)
		}
	}
	remove := func(p *onePin) { p.pin = nil }
	foreign := func(p *onePin) {
		pin := pinOf(digestA)
		pin.Spec.Owner.UID = "3"
		p.store(pin)
	}
	for _, tc := range []struct {
		name   string
		there  func(*onePin) // before the call
		others []func(*onePin)
		force  bool
		want   Status // empty for an error
		digest string // of the ImagePin afterwards
		other  string
		writes int
	}{
		{name: "none", want: Created, digest: digestA, writes: 1},
		{name: "the same digest", there: claim(digestA), want: Unchanged, digest: digestA},
		{name: "another digest", there: claim(digestB), want: Conflict, digest: digestB, other: digestB},
		{name: "another digest, force", there: claim(digestB), force: true, want: Moved, digest: digestA, other: digestB, writes: 1},
		{name: "a node is first", others: []func(*onePin){claim(digestB)}, want: Conflict, digest: digestB, other: digestB},
		{name: "another seed is first", others: []func(*onePin){claim(digestA)}, want: Unchanged, digest: digestA},
		{name: "a node is first, force", others: []func(*onePin){claim(digestB)}, force: true, want: Moved, digest: digestA, other: digestB, writes: 1},
		{name: "another person moves it", there: claim(digestB), others: []func(*onePin){claim(digestC)}, force: true, want: Moved, digest: digestA, other: digestC, writes: 1},
		{name: "another seed moves it", there: claim(digestB), others: []func(*onePin){claim(digestA)}, force: true, want: Unchanged, digest: digestA},
		{name: "it is deleted", there: claim(digestB), others: []func(*onePin){remove}, force: true, want: Created, digest: digestA, writes: 1},
		{name: "it is created and deleted", others: []func(*onePin){claim(digestB), remove}, want: Conflict, other: digestB},
		{name: "of another owner", there: foreign, force: true, digest: digestA},
		{
			name: "always another", others: []func(*onePin){claim(digestB), claim(digestC), claim(digestB), claim(digestC), claim(digestB), claim(digestC)},
			force: true, digest: digestB,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pins := &onePin{}
			if tc.there != nil {
				tc.there(pins)
			}
			pins.others = tc.others
			item, err := (&Seeder{Pins: pins, Force: tc.force}).Seed(t.Context(), pinOf(digestA))
			if (err != nil) != (tc.want == "") || item.Status != tc.want || item.Other != tc.other && err == nil || pins.writes != tc.writes {
				t.Errorf("got %+v, %v after %d writes", item, err, pins.writes)
			}
			if (item.By != nil) != (item.Other != "") {
				t.Errorf("got %+v of another ImagePin %q", item.By, item.Other)
			}
			got := ""
			if pins.pin != nil {
				got = pins.pin.Spec.Digest
			}
			if got != tc.digest {
				t.Errorf("the ImagePin has %q, want %q", got, tc.digest)
			}
		})
	}
}

// A dry run reports what would be done, and writes nothing.
func TestDryRun(t *testing.T) {
	for _, tc := range []struct {
		name    string
		seeder  Seeder
		dryRuns int
	}{
		{"client", Seeder{Offline: true, Force: true}, 0},
		{"server", Seeder{DryRun: true, Force: true}, 1},
	} {
		for _, there := range []bool{false, true} {
			pins, want := &onePin{}, Created
			if there {
				pins.store(pinOf(digestB))
				want = Moved
			}
			tc.seeder.Pins = pins
			item, err := tc.seeder.Seed(t.Context(), pinOf(digestA))
			if err != nil || item.Status != want || pins.writes != 0 || pins.dryRuns != tc.dryRuns {
				t.Errorf("%s: got %+v, %v after %d writes and %d dry runs, want %s", tc.name, item, err, pins.writes, pins.dryRuns, want)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	refused := apierrors.NewForbidden(resource, "", errors.New("no"))
	if item, err := (&Seeder{Pins: &onePin{refuse: refused}}).Seed(t.Context(), pinOf(digestA)); err != refused || item.Status != "" {
		t.Errorf("got %+v, %v, want the error of the server as it is", item, err)
	}
}
