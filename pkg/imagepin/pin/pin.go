package pin

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const (
	// Namespace is the containerd namespace that pins are kept in.
	Namespace = "imagepin"

	labelVersion = imagepin.LabelPrefix + "pin.version"
	labelScope   = imagepin.LabelPrefix + "pin.scope"
	labelRef     = imagepin.LabelPrefix + "pin.ref"
	labelMade    = imagepin.LabelPrefix + "pin.made"
	labelBy      = imagepin.LabelPrefix + "pin.by"
	labelUsed    = imagepin.LabelPrefix + "pin.used"
	labelRetain  = imagepin.LabelPrefix + "pin.retain"
	labelDrift   = imagepin.LabelPrefix + "pin.drift"
	labelHistory = imagepin.LabelPrefix + "pin.history"
	labelFor     = imagepin.LabelPrefix + "pin.namespace"

	version = 1
	// maxHistory is how many changes a pin remembers.
	maxHistory = 16
)

// By says who decided.
type By string

const (
	// ByUse is a pin made by the first pull or container.
	ByUse By = "use"
	// ByOperator is a pin set by hand.
	ByOperator By = "operator"
	// ByRefresh is a pin moved by a refresh.
	ByRefresh By = "refresh"
)

// ID names a pin.
type ID struct {
	Scope policy.Scope
	Ref   string // normalized, with a tag
}

// String is the name of the pin's record.
func (id ID) String() string { return string(id.Scope) + "/" + id.Ref }

// Pin is a decision on which digest a reference means.
type Pin struct {
	ID
	// Root is what the registry gave: an index or a manifest.
	Root ocispec.Descriptor
	// MadeAt is since when the reference means Root, and By who decided it.
	MadeAt time.Time
	By     By
	// UsedAt is when the pin last mattered; its record says the day.
	UsedAt time.Time
	// For is the Kubernetes namespace of the pod that made a pin of the node
	// scope; empty where none did, and in other scopes. See [Pin.Payer].
	For string
	// Retain keeps the content.
	Retain bool
	// Drift is what the registry's tag has moved to; nil where it has not.
	Drift *Drift
	// History is what the reference meant before, oldest first.
	History []Change
	// Proofs are of what the pin retains, oldest first.
	Proofs []Proof
}

// Drift is a tag that has moved away from its pin.
type Drift struct {
	Digest digest.Digest `json:"digest"`
	Since  time.Time     `json:"since"`
}

// Change is a digest that a pin once had.
type Change struct {
	Digest digest.Digest `json:"digest"`
	From   time.Time     `json:"from"`
	By     By            `json:"by"`
}

// record makes the image record of a pin. Labels that are empty are those to be
// dropped. It fails with ErrInvalidArgument where a label cannot hold the scope,
// whose name comes from a pod.
func (p Pin) record() (images.Image, error) {
	if err := labels.Validate(labelScope, string(p.Scope)); err != nil {
		return images.Image{}, fmt.Errorf("pin %s in scope %.100q…: %w", p.Ref, p.Scope, err)
	}
	if err := labels.Validate(labelFor, p.For); err != nil {
		return images.Image{}, fmt.Errorf("pin %s for namespace %.100q…: %w", p.Ref, p.For, err)
	}
	img := images.Image{Name: p.ID.String(), Target: p.Root, Labels: map[string]string{
		labelVersion: strconv.Itoa(version),
		labelScope:   string(p.Scope),
		labelRef:     p.Ref,
		labelMade:    p.MadeAt.UTC().Format(time.RFC3339),
		labelBy:      string(p.By),
		labelUsed:    p.UsedAt.UTC().Format(time.DateOnly),
		labelRetain:  "",
		labelDrift:   "",
		labelHistory: "",
		labelFor:     p.For,
	}}
	if p.Retain {
		img.Labels[labelRetain] = "true"
	}
	if p.Drift != nil {
		b, err := json.Marshal(p.Drift)
		if err != nil {
			return images.Image{}, err
		}
		img.Labels[labelDrift] = string(b)
	}
	if len(p.History) > 0 {
		b, err := json.Marshal(p.History)
		if err != nil {
			return images.Image{}, err
		}
		img.Labels[labelHistory] = string(b)
	}
	for _, proof := range p.Proofs {
		img.Labels[imagepin.ProofLabelPrefix+proof.MAC] = proof.At.UTC().Format(time.RFC3339)
	}
	return img, nil
}

// read makes a pin of its image record. It fails with ErrNotImplemented for a
// newer version. A label that says nothing about the decision itself and cannot
// be read is left out: the decision is what counts.
func read(img images.Image) (Pin, error) {
	v, err := strconv.Atoi(img.Labels[labelVersion])
	if err != nil {
		return Pin{}, fmt.Errorf("pin %s: version %q: %w", img.Name, img.Labels[labelVersion], errdefs.ErrInvalidArgument)
	}
	if v > version {
		return Pin{}, fmt.Errorf("pin %s: version %d is newer than %d: %w", img.Name, v, version, errdefs.ErrNotImplemented)
	}
	p := Pin{
		ID:     ID{Scope: policy.Scope(img.Labels[labelScope]), Ref: img.Labels[labelRef]},
		Root:   img.Target,
		MadeAt: img.CreatedAt,
		UsedAt: img.UpdatedAt,
		By:     By(img.Labels[labelBy]),
		Retain: img.Labels[labelRetain] == "true",
		For:    img.Labels[labelFor],
		Proofs: readProofs(img),
	}
	if p.ID.String() != img.Name {
		return Pin{}, fmt.Errorf("pin %s: is of %s: %w", img.Name, p.ID, errdefs.ErrInvalidArgument)
	}
	if _, err := policy.ParseScope(string(p.Scope)); err != nil {
		return Pin{}, fmt.Errorf("pin %s: %w", img.Name, err)
	}
	if _, err := reference.ParseNamed(p.Ref); err != nil {
		return Pin{}, fmt.Errorf("pin %s: %v: %w", img.Name, err, errdefs.ErrInvalidArgument)
	}
	if t, err := time.Parse(time.RFC3339, img.Labels[labelMade]); err == nil {
		p.MadeAt = t
	}
	if t, err := time.Parse(time.DateOnly, img.Labels[labelUsed]); err == nil {
		p.UsedAt = t
	}
	if p.UsedAt.Before(p.MadeAt) {
		p.UsedAt = p.MadeAt // the label is of the day
	}
	var drift Drift
	if json.Unmarshal([]byte(img.Labels[labelDrift]), &drift) == nil && drift.Digest.Validate() == nil {
		p.Drift = &drift
	}
	var history []Change
	if json.Unmarshal([]byte(img.Labels[labelHistory]), &history) == nil {
		p.History = history
	}
	return p, nil
}
