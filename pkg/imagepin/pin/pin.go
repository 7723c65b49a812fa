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
	// Namespace is the containerd namespace of pins and of the lock.
	Namespace = "imagepin"
	// LockRecord is the name of the record of the node's lock in Namespace.
	LockRecord = "lock"

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
	labelClaim   = imagepin.LabelPrefix + "pin.provisional"
	labelClaimer = imagepin.LabelPrefix + "pin.claimer"

	version = 1
	// maxHistory is how many earlier digests a pin keeps.
	maxHistory = 16
)

// By is what made or moved a pin.
type By string

const (
	// ByUse is the first pull or container.
	ByUse By = "use"
	// ByOperator is an operator.
	ByOperator By = "operator"
	// ByRefresh is a refresh.
	ByRefresh By = "refresh"
	// ByCluster is a pin of the Kubernetes API, of which the node has a copy.
	ByCluster By = "cluster"
	// ByLock is the node's lock.
	ByLock By = "lock"
)

// ID identifies a pin.
type ID struct {
	Scope policy.Scope
	Ref   string // normalized, with a tag
}

// String returns the name of the pin's record.
func (id ID) String() string { return string(id.Scope) + "/" + id.Ref }

// Pin pins a reference to a digest in a scope.
type Pin struct {
	ID
	// Root is the descriptor of the index or manifest from the registry.
	Root ocispec.Descriptor
	// MadeAt is when the reference was pinned to Root, and By is what pinned it.
	MadeAt time.Time
	By     By
	// UsedAt is when the pin was last used. Its record only has the day.
	UsedAt time.Time
	// For is the Kubernetes namespace of the pod that made a pin of the node scope. It is empty without a pod, and in
	// other scopes.
	For string
	// Retain reports whether the pin retains the content of its digest.
	Retain bool
	// Drift is the digest of the registry's tag if it differs from the pin, or nil.
	Drift *Drift
	// History has the earlier digests of the pin, oldest first.
	History []Change
	// Provisional is the pod to claim the pin for, if the cluster does not have the pin yet because its API server did not
	// answer. It is nil for other pins.
	Provisional *Claimant
	// Claimer is the node that created the pin in the cluster. It is empty if a person did, and for the node's own pins.
	Claimer string
	// Proofs are the proofs for the content that the pin retains, least recently used first.
	Proofs []Proof
}

// Described reports whether the pin has all of its descriptor. A pin of the cluster of which the node has no copy has only the digest.
func (p Pin) Described() bool { return p.By != ByCluster || p.Root.MediaType != "" }

// Drift is a registry tag that has moved away from its pin.
type Drift struct {
	Digest digest.Digest `json:"digest"`
	Since  time.Time     `json:"since"`
}

// Change is an earlier digest of a pin.
type Change struct {
	Digest digest.Digest `json:"digest"`
	From   time.Time     `json:"from"`
	By     By            `json:"by"`
}

// record returns the image record of a pin. Empty labels are to be removed. record returns ErrInvalidArgument if the
// scope is too long for a label, because parts of it come from a pod.
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
		labelClaim:   "",
		labelClaimer: p.Claimer,
	}}
	if p.Provisional != nil {
		img.Labels[labelClaim] = p.Provisional.String()
	}
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
		name, value := proof.Label()
		img.Labels[name] = value
	}
	return img, nil
}

// read returns the pin of an image record. It returns ErrNotImplemented for a newer version, and ErrInvalidArgument for
// a damaged record. It ignores unreadable labels that do not affect which digest is pinned.
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

		Provisional: parseClaimant(img.Labels[labelClaim]),
		Claimer:     img.Labels[labelClaimer],
		Proofs:      imagepin.ProofsOf(img.Labels),
	}
	if p.ID.String() != img.Name {
		return Pin{}, fmt.Errorf("pin %s: its labels are for %s: %w", img.Name, p.ID, errdefs.ErrInvalidArgument)
	}
	if p.Scope == policy.LockScope {
		return Pin{}, fmt.Errorf("pin %s: the pins of a lock have no records of their own: %w", img.Name, errdefs.ErrInvalidArgument)
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
		p.UsedAt = p.MadeAt // the label only has the day
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
