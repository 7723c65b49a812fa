package blobs_test

import (
	"errors"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// TestVerify checks that Verify compares the content of a file with its digest.
func TestVerify(t *testing.T) {
	e := ctdtest.New(t)
	all := ctdtest.Blobs{}
	ctx, done := e.Lease(t)
	defer done()
	big := all.Add("", make([]byte, 3<<20))
	empty := all.Add("", nil)
	e.Write(ctx, t, all)
	for _, d := range []struct {
		digest digest.Digest
		size   int64
	}{{big.Digest, big.Size}, {empty.Digest, empty.Size}} {
		var read int64
		err := blobs.Verify(ctx, e.Content, d.digest, d.size, func(n int64) error { read += n; return nil })
		if err != nil || read != d.size {
			t.Errorf("read %d of %d bytes: %v", read, d.size, err)
		}
		for name, err := range map[string]error{
			"check": blobs.Check(ctx, e.Content, d.digest, d.size), "remote": blobs.CheckRemote(ctx, e.Content, d.digest, d.size),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	stop := errors.New("stop")
	if err := blobs.Verify(ctx, e.Content, big.Digest, big.Size, func(int64) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped: got %v, want %v", err, stop)
	}
	path := e.File(big.Digest)
	noError(t, os.Chmod(path, 0o600))
	b, err := os.ReadFile(path)
	noError(t, err)
	b[2<<20] ^= 1
	noError(t, os.WriteFile(path, b, 0o600))
	damage := new(blobs.Damage)
	if err := blobs.Verify(ctx, e.Content, big.Digest, big.Size, nil); !errors.As(err, &damage) || damage.Missing {
		t.Errorf("one bit differs: got %v, want damage", err)
	}
	noError(t, os.Truncate(path, 5))
	if err := blobs.CheckRemote(ctx, e.Content, big.Digest, big.Size); !errors.As(err, &damage) || damage.Missing {
		t.Errorf("cut: got %v, want damage", err)
	}
	noError(t, os.Remove(path))
	for name, err := range map[string]error{
		"check": blobs.Check(ctx, e.Content, big.Digest, big.Size), "remote": blobs.CheckRemote(ctx, e.Content, big.Digest, big.Size),
		"verify": blobs.Verify(ctx, e.Content, big.Digest, big.Size, nil),
	} {
		if !errors.As(err, &damage) || !damage.Missing {
			t.Errorf("%s of a missing file: got %v, want missing", name, err)
		}
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
