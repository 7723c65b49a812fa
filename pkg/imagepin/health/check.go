package health

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Report is the result of a check.
type Report struct {
	// Checked is the number of keys that were checked, also of those that are not in the index.
	Checked  int
	Findings []Finding
	// Records are the image records that the keys were compared with.
	Records []images.Image
}

// Differences returns the number of findings that are differences.
func (r Report) Differences() (n int) {
	for _, f := range r.Findings {
		if f.Kind != NotAdopted && f.Kind != Unverified {
			n++
		}
	}
	return n
}

// Finding is a difference between the recorded and the actual state, or an image that is not adopted.
type Finding struct {
	// Subject is a key, a record, or the digest of a blob.
	Subject string
	// Problem describes the difference.
	Problem string
	Kind    Kind
	// Loss has details of a LostKey or a DamagedBlob. Its Entry is set for all kinds except Ignored.
	Loss Loss
}

// Kind is the kind of a finding.
type Kind int

const (
	// Ignored is a label that cannot be read, or that another record takes precedence over.
	Ignored Kind = iota
	// LostKey is a key whose content or snapshot is gone.
	LostKey
	// WrongRecord is a key whose record is wrong or missing.
	WrongRecord
	// DamagedBlob is a damaged or unreadable file that the key does not need to be ready, such as that of a layer.
	DamagedBlob
	// NotAdopted is the image of another tool without a key, such as a record with a name that no pod can use. It is not a
	// difference: there is nothing to repair.
	NotAdopted
	// Unverified is a key whose files could not be compared with its layers. It is not known to be a difference, and not known to be
	// none.
	Unverified
)

// RepairHint describes how the finding would be repaired.
func (f Finding) RepairHint() string {
	if f.Loss.Unknown {
		return "wait until it can be read"
	}
	switch f.Kind {
	case LostKey:
		return "unpack it again from local content; if that fails, fetch it by digest; drop the key only if the registry no longer has it"
	case WrongRecord:
		return "repair its records and labels"
	case DamagedBlob:
		return "fetch it again by digest"
	}
	return "ignore it"
}

// PinnedRef returns the reference of a pin at a root digest, or "" if there is none. It is used to fetch content again
// that only a pin retains.
type PinnedRef func(root digest.Digest) string

// Check compares the keys with the content and the snapshots that they need, with their records, and with the layers
// that are kept. It also checks the content that pins retain. It writes nothing. ref may be nil.
func (c *Checker) Check(ctx context.Context, ref PinnedRef) (Report, error) {
	have, err := c.Inventory(ctx)
	if err != nil {
		return Report{}, err
	}
	needed, err := c.needed(ctx, have)
	if err != nil {
		return Report{}, err
	}
	report, err := c.checkAgainst(ctx, have)
	if err != nil {
		return report, err
	}
	c.checkRetained(have, needed, ref, &report)
	return report, nil
}

// checkAgainst compares the keys with an inventory.
func (c *Checker) checkAgainst(ctx context.Context, have *Inventory) (Report, error) {
	if _, err := have.CheckLayers(ctx, c.config.Content); err != nil {
		return Report{}, err
	}
	// Before the records are listed: a key that is compared meanwhile is ready then, or its label says that it is damaged.
	waiting := make(map[imagepin.Key]bool)
	for _, d := range c.config.Images.Damaged() {
		waiting[d.Key] = d.Waiting
	}
	recorded, err := c.config.Images.ListRecorded(ctx)
	if err != nil {
		return Report{}, err
	}
	records := make(map[string]images.Image, len(recorded.Records))
	for _, img := range recorded.Records {
		records[img.Name] = img
	}
	r := Report{Records: recorded.Records, Checked: len(recorded.Keys)}
	known := make(map[string]imagepin.Entry) // by label name
	for _, e := range recorded.Keys {
		label := imagepin.KeyLabelName(e.Key)
		known[label] = e
		if loss, gone := c.Lost(e, have); gone && !c.config.Images.RecordedSince(have.began, e) {
			r.lost(loss)
		}
		if why := recordProblem(e, label, records); why != "" {
			r.add(WrongRecord, e, why)
		}
	}
	for _, img := range recorded.Records {
		c.checkLabels(img, known, waiting, have, &r)
	}
	c.checkUnneeded(have, &r)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return store.Compare(a.Loss.Entry, b.Loss.Entry) })
	return r, nil
}

func (r *Report) lost(l Loss) {
	r.Findings = append(r.Findings, Finding{Subject: l.Entry.Key.String(), Problem: l.Reason, Kind: LostKey, Loss: l})
}

func (r *Report) add(kind Kind, e imagepin.Entry, problem string) {
	r.Findings = append(r.Findings, Finding{Subject: e.Key.String(), Problem: problem, Kind: kind, Loss: Loss{Entry: e}})
}

// recordProblem describes what is wrong with the records of an entry. It returns "" if they are correct.
func recordProblem(e imagepin.Entry, label string, records map[string]images.Image) string {
	img, ok := records[e.Record]
	switch {
	case !ok:
		return "its record " + e.Record + " is gone"
	case img.Target.Digest != e.RecordTarget.Digest:
		return fmt.Sprintf("its record %s targets %s, not %s", e.Record, img.Target.Digest, e.RecordTarget.Digest)
	case img.Labels[label] == "":
		return "its record " + e.Record + " does not carry its label"
	}
	if _, ok := records[e.ImageID.String()]; !ok {
		return "the record of its image ID " + e.ImageID.String() + " is gone"
	}
	return ""
}

// checkLabels reports the key labels of a record that are not in the index, and not waiting for the comparison of their files.
func (c *Checker) checkLabels(img images.Image, known map[string]imagepin.Entry, waiting map[imagepin.Key]bool, have *Inventory, r *Report) {
	for name, value := range img.Labels {
		if !imagepin.IsKeyLabel(name) {
			continue
		}
		now, ok := known[name]
		if ok && now.Record == img.Name && imagepin.IsKeyLabelOf(now, value) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(name, value)
		if err != nil {
			r.Findings = append(r.Findings, Finding{Subject: img.Name, Problem: err.Error(), Kind: Ignored})
			continue
		}
		e.Record, e.RecordTarget = img.Name, img.Target
		switch {
		case ok && now.Record == img.Name:
		case ok:
			r.add(Ignored, e, fmt.Sprintf("record %s carries it too; record %s takes precedence", img.Name, now.Record))
		default:
			r.Checked++
			loss, gone := c.Lost(e, have)
			if !gone && waiting[e.Key] {
				continue
			}
			if !gone {
				loss = Loss{Entry: e, Reason: "it is recorded on " + img.Name + " but not in the index", Unpackable: true}
			}
			r.lost(loss)
		}
	}
}
