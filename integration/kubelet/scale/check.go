package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/imagepin/imagepin/api/v1alpha1"
)

// check returns what is wrong: each ImagePin needs one winner, whose digest it has and all its agents got. won is how many
// agents have created an ImagePin.
func check(pins []v1alpha1.ImagePin, results []claimed, want, won int) error {
	var errs []error
	if len(pins) != want {
		errs = append(errs, fmt.Errorf("there are %d ImagePins, want %d", len(pins), want))
	}
	if won != want {
		errs = append(errs, fmt.Errorf("%d agents have created an ImagePin, want %d", won, want))
	}
	byOwner := map[string]v1alpha1.ImagePin{}
	for _, p := range pins {
		byOwner[p.Spec.Owner.Name] = p
		winner := slices.IndexFunc(results, func(r claimed) bool { return p.Spec.By != nil && p.Spec.By.Node == r.node })
		if winner < 0 || results[winner].own.String() != p.Spec.Digest {
			errs = append(errs, fmt.Errorf("ImagePin %s has the digest %s, which is not that of the agent that created it (%+v)", p.Name, p.Spec.Digest, p.Spec.By))
		}
	}
	without, other := 0, 0
	var first error
	for _, r := range results {
		switch {
		case r.err != nil:
			without++
			first = cmp.Or(first, r.err)
		case r.digest.String() != byOwner[r.owner].Spec.Digest:
			other++
		}
	}
	if without > 0 {
		errs = append(errs, fmt.Errorf("%d agents have no digest: %w", without, first))
	}
	if other > 0 {
		errs = append(errs, fmt.Errorf("%d agents have another digest than their ImagePin", other))
	}
	return errors.Join(errs...)
}
