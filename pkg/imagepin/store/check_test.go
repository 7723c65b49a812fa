package store_test

import (
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestCheckOfDamagedLabels checks that a check finds labels that were damaged after the index was built.
func TestCheckOfDamagedLabels(t *testing.T) {
	e := newEnv(t)
	a := e.image("a")
	e.pull(t, tag, a, native, 1, "")
	e.pull(t, tag, a, nativeToo, 1, "")
	if r, err := newChecker(e.store).Check(e.ctx, nil); err != nil || r.Checked != 4 || len(r.Findings) != 0 {
		t.Fatalf("without damage: got %+v, %v, want 4 checked keys and no findings", r, err)
	}
	record := repo + "@" + a.root.Digest.String()
	label := imagepin.KeyLabelName(imagepin.Key{Ref: tag, Target: native})
	for what, value := range map[string]string{
		"unreadable": "{", "of a newer version": `{"v":99}`, "another key's": e.labelOf(t, record, imagepin.Key{Ref: tag, Target: nativeToo}),
	} {
		e.label(t, record, label, value)
		r, err := newChecker(e.store).Check(e.ctx, nil)
		if err != nil || len(r.Findings) != 1 || r.Findings[0].Subject != record {
			t.Errorf("%s label: got findings %+v, %v, want 1", what, r.Findings, err)
		}
	}
}

// labelOf returns the value of a key's label.
func (e *env) labelOf(t *testing.T, record string, k imagepin.Key) string {
	t.Helper()
	img, err := e.Images.Get(e.ctx, record)
	if err != nil {
		t.Fatal(err)
	}
	return img.Labels[imagepin.KeyLabelName(k)]
}
