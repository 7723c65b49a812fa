package imagepin

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// MaxProofs is the maximum number of proofs of an image record or a pin.
const MaxProofs = 64

// maxProofNamespace is the maximum length of a namespace in a proof's label, in bytes. Kubernetes allows no longer one.
const maxProofNamespace = 63

// Proof records that a registry has accepted a credential for a digest of a repository. Its label has the name
// [ProofLabelPrefix] and the MAC, and as its value the time and the namespace of the last use.
type Proof struct {
	// MAC is an HMAC under the node's key, see package resolve.
	MAC string
	// UsedAt is when the proof was used last, to the second. A use on the same day in UTC is not recorded.
	UsedAt time.Time
	// Namespace is the Kubernetes namespace of the pod that used it last. It is empty without a pod.
	Namespace string
}

// NewProof returns a proof that a pod in a namespace uses now.
func NewProof(mac, namespace string) Proof {
	if len(namespace) > maxProofNamespace {
		namespace = before(namespace, maxProofNamespace)
	}
	return Proof{MAC: mac, UsedAt: time.Now().UTC().Truncate(time.Second), Namespace: namespace}
}

// Label returns the label of a proof.
func (p Proof) Label() (name, value string) {
	value = p.UsedAt.UTC().Format(time.RFC3339)
	if p.Namespace != "" {
		value += " " + p.Namespace
	}
	return ProofLabelPrefix + p.MAC, value
}

// ProofsOf returns the proofs in labels, least recently used first. A label whose time cannot be read counts as the oldest.
func ProofsOf(labels map[string]string) []Proof {
	var proofs []Proof
	for name, value := range labels {
		mac, ok := strings.CutPrefix(name, ProofLabelPrefix)
		if !ok {
			continue
		}
		at, namespace, _ := strings.Cut(value, " ")
		used, _ := time.Parse(time.RFC3339, at)
		proofs = append(proofs, Proof{MAC: mac, UsedAt: used, Namespace: namespace})
	}
	slices.SortFunc(proofs, compareProofs)
	return proofs
}

func compareProofs(a, b Proof) int {
	return cmp.Or(a.UsedAt.Compare(b.UsedAt), cmp.Compare(a.MAC, b.MAC))
}

// WithProof returns proofs after the use of one, least recently used first. changed is false if there is nothing to record.
//
// If there are more than [MaxProofs], it removes the least recently used proof of the namespace that has most: a tenant with many
// credentials pushes out only its own.
func WithProof(proofs []Proof, used Proof) (_ []Proof, changed bool) {
	return addProofs(proofs, []Proof{used}, used.MAC)
}

// MergeProofs is [WithProof] for the uses of several proofs, which may be older than those of other proofs. The order of several
// merges does not matter.
func MergeProofs(proofs, used []Proof) (_ []Proof, changed bool) {
	return addProofs(proofs, used, "")
}

// addProofs adds the uses of proofs. It does not remove the one with the MAC keep.
func addProofs(proofs, used []Proof, keep string) (_ []Proof, changed bool) {
	known := make(map[string]Proof, len(proofs))
	for _, p := range proofs {
		known[p.MAC] = p
	}
	all := slices.Clone(proofs)
	for _, u := range used {
		old, ok := known[u.MAC]
		if ok && (sameDay(old.UsedAt, u.UsedAt) || u.MAC != keep && old.UsedAt.After(u.UsedAt)) {
			continue
		}
		all = append(slices.DeleteFunc(all, func(p Proof) bool { return p.MAC == u.MAC }), u)
	}
	slices.SortFunc(all, compareProofs)
	for len(all) > MaxProofs {
		i := surplus(all, keep)
		all = slices.Delete(all, i, i+1)
	}
	if !slices.ContainsFunc(all, func(p Proof) bool { return known[p.MAC] != p }) {
		return proofs, false
	}
	return all, true
}

// surplus returns which of some proofs, least recently used first, gives way. It is not the one with the MAC keep.
func surplus(proofs []Proof, keep string) int {
	share, most := make(map[string]int), 0
	for _, p := range proofs {
		share[p.Namespace]++
		most = max(most, share[p.Namespace])
	}
	return slices.IndexFunc(proofs, func(p Proof) bool { return share[p.Namespace] == most && p.MAC != keep })
}

func sameDay(a, b time.Time) bool {
	return a.UTC().Truncate(24 * time.Hour).Equal(b.UTC().Truncate(24 * time.Hour))
}
