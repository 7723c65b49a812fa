package upstream

import (
	"context"
	"errors"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// TestExpectedDigest has the real error of containerd's content store.
func TestExpectedDigest(t *testing.T) {
	store, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []digest.Digest{digest.FromString("other"), digest.SHA512.FromString("other")} {
		err := content.WriteBlob(t.Context(), store, "ref", strings.NewReader("this"), ocispec.Descriptor{Digest: d, Size: 4})
		if err == nil || ExpectedDigest("pull: "+err.Error()+": again") != d.String() {
			t.Errorf("got %q of %v, want %s", ExpectedDigest(err.Error()), err, d)
		}
	}
	if got := ExpectedDigest("unexpected commit size 3, expected 4"); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestLayout writes a blob, and a part of another one, to the real content store.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	store, err := local.NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("blob")
	if err := content.WriteBlob(t.Context(), store, "ref", strings.NewReader("blob"), ocispec.Descriptor{Digest: d, Size: 4}); err != nil {
		t.Fatal(err)
	}
	w, err := store.Writer(t.Context(), content.WithRef("written"))
	if err != nil {
		t.Fatal(err)
	}
	_, werr := w.Write([]byte("part"))
	if err := errors.Join(werr, w.Close()); err != nil {
		t.Fatal(err)
	}
	writes, err := filepath.Glob(filepath.Join(dir, IngestDir, "*"))
	if err != nil || len(writes) != 1 || filepath.Base(writes[0]) != digest.FromString("written").Encoded() {
		t.Fatal(writes, err)
	}
	for name, want := range map[string]string{
		filepath.Join(dir, BlobsDir, "sha256", d.Encoded()): "blob",
		filepath.Join(writes[0], IngestRef):                 "written",
		filepath.Join(writes[0], IngestData):                "part",
	} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v", name, b, err)
		}
	}
}

// TestLeaseTypes adds resources to a real lease.
func TestLeaseTypes(t *testing.T) {
	file, err := bolt.Open(filepath.Join(t.TempDir(), "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	db := metadata.NewDB(file, nil, nil)
	if err := db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(context.WithoutCancel(t.Context()), "test")
	manager := metadata.NewLeaseManager(db)
	l, err := manager.Create(ctx, leases.WithID("lease"))
	if err != nil {
		t.Fatal(err)
	}
	want := []leases.Resource{
		{Type: ContentType, ID: digest.FromString("x").String()}, {Type: IngestType, ID: "write"}, {Type: SnapshotType + Overlayfs, ID: "snapshot"},
	}
	for _, r := range want {
		if err := manager.AddResource(ctx, l, r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	got, err := manager.ListResources(ctx, l)
	if slices.SortFunc(got, func(a, b leases.Resource) int { return strings.Compare(a.Type, b.Type) }); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestRefs compares the labels of references with those of containerd.
func TestRefs(t *testing.T) {
	for mediaType, want := range map[string]string{
		ocispec.MediaTypeImageManifest: ManifestRef, ocispec.MediaTypeImageConfig: ConfigRef, ocispec.MediaTypeImageLayerGzip: LayerRef,
		"text/plain": ContentRef + ".",
	} {
		if got := images.ChildGCLabels(ocispec.Descriptor{MediaType: mediaType}); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %v, want %s", mediaType, got, want)
		}
	}
	got := images.ChildGCLabels(ocispec.Descriptor{Annotations: map[string]string{images.AnnotationManifestSubject: "x"}})
	if len(got) != 1 || !strings.HasPrefix(got[0], ReferrerRef) {
		t.Errorf("got %v, want %s", got, ReferrerRef)
	}
}

// TestSnapshotters compares the snapshotters with those that cmd/containerd/builtins imports, on all systems.
func TestSnapshotters(t *testing.T) {
	m := newest(t)
	files, err := filesIn(filepath.Join(m.dir, "cmd/containerd/builtins"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			switch inside, ok := strings.CutPrefix(name, m.path+"/plugins/snapshots/"); {
			case ok:
				got = append(got, registered(t, filepath.Join(m.dir, "plugins/snapshots", inside))...)
			case strings.HasSuffix(path.Dir(path.Dir(name)), "containerd/zfs"): // a module of its own
				got = append(got, "zfs")
			}
		}
	}
	want := append([]string{"blockcim", "cimfs"}, Snapshotters...) // these two are only for Windows, and not listed
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(slices.Compact(got), want) {
		t.Errorf("containerd has the snapshotters %v, not %v", got, want)
	}
}

// registered returns the IDs of the plugins that a package registers.
func registered(t *testing.T, dir string) (ids []string) {
	t.Helper()
	files, err := filesIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			field, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := field.Key.(*ast.Ident); ok && key.Name == "ID" {
				id, err := textOf(module{}, name, field.Value)
				if err != nil {
					t.Error(err)
				}
				ids = append(ids, id)
			}
			return true
		})
	}
	return ids
}
