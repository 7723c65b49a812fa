package reconcile

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// failingPuller fails after it has called meanwhile.
type failingPuller struct{ meanwhile func() }

func (p failingPuller) Repair(context.Context, imagepin.Entry) (pull.Outcome, error) {
	p.meanwhile()
	return pull.Failed, errdefs.ErrPermissionDenied
}

// TestRepairKeepsWhatIsReadyAgain repairs a key whose manifest is gone, and the registry denies the node access. The key
// is dropped, unless a pull with other credentials has made the image ready again during the repair.
func TestRepairKeepsWhatIsReadyAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		pulled bool
		want   Repaired
	}{
		{"still lost", false, Dropped},
		{"pulled meanwhile", true, Recorded},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDeepNode(t)
			file := d.File(d.images[0].Manifest.Digest)
			manifest, err := os.ReadFile(file)
			noError(t, err)
			noError(t, os.Remove(file))
			report, err := d.Check(d.ctx)
			noError(t, err)
			at := slices.IndexFunc(report.Findings, func(f health.Finding) bool { return f.Kind == health.LostKey })
			if at < 0 {
				t.Fatalf("got findings %+v, want a lost key", report.Findings)
			}
			lost := report.Findings[at]
			d.config.Puller = failingPuller{func() {
				if test.pulled {
					noError(t, os.WriteFile(file, manifest, 0o600))
				}
			}}
			done, err := d.Repair(d.ctx, lost)
			if done != test.want || (err == nil) != test.pulled {
				t.Errorf("got %q, %v, want %q", done, err, test.want)
			}
			if _, ready := d.store.Get(lost.Loss.Entry.Key); ready != test.pulled {
				t.Errorf("the key is in the index: %t, want %t", ready, test.pulled)
			}
			d.wantNothingLeft(t)
		})
	}
}
