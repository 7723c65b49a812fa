package imagepin

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/labels"
)

var proofDay = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// proofOf returns a proof that was used on a day.
func proofOf(mac, namespace string, day int) Proof {
	return Proof{MAC: mac, Namespace: namespace, UsedAt: proofDay.AddDate(0, 0, day)}
}

func labelsOf(proofs []Proof) map[string]string {
	all := map[string]string{"other": "label"}
	for _, p := range proofs {
		name, value := p.Label()
		all[name] = value
	}
	return all
}

func TestProofLabels(t *testing.T) {
	want := []Proof{proofOf("b", "", 1), proofOf("c", "shop", 1), proofOf("a", "shop", 2)}
	all := labelsOf(want)
	if all[ProofLabelPrefix+"b"] != "2026-03-05T12:00:00Z" || all[ProofLabelPrefix+"a"] != "2026-03-06T12:00:00Z shop" {
		t.Errorf("labels %v", all)
	}
	if got := ProofsOf(all); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, namespace := range []string{"", "shop", strings.Repeat("n", maxProofNamespace)} {
		if got := NewProof("mac", namespace); got.Namespace != namespace || time.Since(got.UsedAt) > time.Minute {
			t.Errorf("got %v, want namespace %q", got, namespace)
		}
	}
	all[ProofLabelPrefix+"damaged"] = "yesterday shop"
	if got := ProofsOf(all); len(got) != 4 || got[0] != (Proof{MAC: "damaged", Namespace: "shop"}) {
		t.Errorf("got %v, want the damaged one first", got)
	}
	long := NewProof(strings.Repeat("a", 32), strings.Repeat("ü", 1<<20))
	name, value := long.Label()
	if err := labels.Validate(name, value); err != nil || len(value) > 100 {
		t.Errorf("a long namespace: %d bytes, %v", len(value), err)
	}
	if got := ProofsOf(map[string]string{name: value}); len(got) != 1 || got[0] != long {
		t.Errorf("got %v, want %v", got, long)
	}
}

// TestProofUse records one use a day, with the namespace of the last one.
func TestProofUse(t *testing.T) {
	proofs, changed := WithProof(nil, proofOf("a", "shop", 0))
	if !changed || len(proofs) != 1 {
		t.Fatalf("got %v, %v", proofs, changed)
	}
	later := proofOf("a", "team", 0)
	later.UsedAt = later.UsedAt.Add(11 * time.Hour)
	if got, changed := WithProof(proofs, later); changed || got[0].Namespace != "shop" {
		t.Errorf("on the same day: %v, %v", got, changed)
	}
	for _, day := range []int{1, -1} { // also after the clock was set back
		if got, changed := WithProof(proofs, proofOf("a", "team", day)); !changed || len(got) != 1 || got[0] != proofOf("a", "team", day) {
			t.Errorf("%d days later: %v, %v", day, got, changed)
		}
	}
	if proofs[0] != proofOf("a", "shop", 0) {
		t.Error("the proofs have changed")
	}
}

// TestProofShares fills the proofs of an image from one namespace. It pushes out its own proofs only, least recently used first,
// however old those of others are.
func TestProofShares(t *testing.T) {
	var proofs []Proof
	use := func(p Proof) {
		t.Helper()
		var changed bool
		if proofs, changed = WithProof(proofs, p); !changed || len(proofs) > MaxProofs {
			t.Fatalf("changed %v, %d proofs", changed, len(proofs))
		}
	}
	has := func(mac string) bool { _, ok := labelsOf(proofs)[ProofLabelPrefix+mac]; return ok }
	use(proofOf("victim", "shop", 0))
	use(proofOf("operator", "", 0))
	use(proofOf("mine", "evil", 1))
	for n := range 3 * MaxProofs {
		use(proofOf(fmt.Sprintf("flood-%03d", n), "evil", 30))
		if n == MaxProofs/2 {
			use(proofOf("mine", "evil", 40))
		}
	}
	last := 3*MaxProofs - 1
	if len(proofs) != MaxProofs || !has("victim") || !has("operator") || !has("mine") || !has(fmt.Sprintf("flood-%03d", last)) || has("flood-000") {
		t.Errorf("got %v", proofs)
	}
	// With as many namespaces as there is room, the least recently used one gives way.
	for n := range MaxProofs {
		use(proofOf(fmt.Sprintf("fair-%03d", n), fmt.Sprintf("team-%d", n), 50))
	}
	if has("victim") || !has("fair-000") || len(proofs) != MaxProofs {
		t.Errorf("got %v", proofs)
	}
}
