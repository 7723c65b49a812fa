package bundle

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

var (
	anIndex    = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("index"), Size: 1}
	aManifest  = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("manifest"), Size: 1}
	listedText = fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":1}`, ocispec.MediaTypeImageManifest, aManifest.Digest)
)

// TestHostileDocuments checks that documents of the maximum size that expand in memory are refused before they do.
func TestHostileDocuments(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	for name, c := range map[string]struct {
		text, want string
	}{
		"empty descriptors":   {`{"manifests":[` + strings.Repeat("{},", maxMetadataBlob/3-10) + `{}]}`, "lists at most 8192"},
		"an empty descriptor": {`{"manifests":[{}]}`, "digest"},
		"texts":               {`{"manifests":[{"platform":{"os.features":[` + strings.Repeat(`"",`, maxMetadataBlob/3-40) + `""]}}]}`, "texts"},
		"features":            {`{"manifests":[{"platform":{"os.features":[` + strings.Repeat(`"",`, maxFeatures) + `""]}}]}`, "features"},
		"long media type":     {`{"manifests":[{"mediaType":"` + long + `"}]}`, "the limit is 255"},
		"long variant":        {`{"manifests":[{"platform":{"variant":"` + long + `"}}]}`, "the limit is 255"},
		"no list":             {`{"manifests":{"a":1}}`, "a list is expected"},
		"an invalid one last": {`{"manifests":[` + listedText + `,{"digest":"sha256:1"}]}`, "sha256:1"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			doc, err := parse(anIndex, []byte(c.text))
			if err == nil {
				err = doc.manifests.each(func(ocispec.Descriptor) error { return nil })
			}
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 6*maxMetadataBlob {
				t.Errorf("%d MiB were allocated for %d MiB", got>>20, len(c.text)>>20)
			}
		})
	}
}

// TestDocument checks that a document is read as encoding/json reads it: the last one of equal keys counts, and null is nothing.
func TestDocument(t *testing.T) {
	doc, err := parse(anIndex, []byte(`{"manifests":[`+listedText+`,`+listedText+`],"layers":null,"manifests":[`+listedText+`]}`))
	if err != nil || doc.manifests.number != 1 {
		t.Fatalf("got %+v, %v", doc, err)
	}
	if err := doc.manifests.each(func(d ocispec.Descriptor) error {
		if d.Digest != aManifest.Digest {
			t.Errorf("got %+v", d)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{`"MANIFESTS"`, `"manifests"`, `"manifestſ"`} {
		if doc, err := parse(anIndex, []byte(`{`+name+`:[`+listedText+`]}`)); err != nil || doc.manifests.number != 1 {
			t.Errorf("%s: got %+v, %v", name, doc, err)
		}
	}
	text := `{"config":` + strings.Replace(listedText, "{", `{"platform":{"os":"windows","os.features":["win32k"],"os.features":["a","b"]},"annotations":{"a":"b"},`, 1) + `}`
	doc, err = parse(aManifest, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if d := doc.config; d.Size != 1 || d.Platform.OS != "windows" || len(d.Platform.OSFeatures) != 2 || d.Annotations != nil {
		t.Errorf("got %+v", d)
	}
	if _, err := parse(anIndex, []byte(`{"fsLayers":null}`)); err == nil {
		t.Error("an index with layers of a schema 1 manifest is accepted")
	}
}

// TestInvalidDescriptorNamesItsDocument checks that an error of a descriptor in a list names the index or the manifest that has the list.
func TestInvalidDescriptorNamesItsDocument(t *testing.T) {
	c := newClosure(&lock.Lock{})
	c.present = choose(nil)
	for n, d := range []ocispec.Descriptor{anIndex, aManifest} {
		if err := c.addRoot(d, 0); err != nil {
			t.Fatal(err)
		}
		add, text := c.addIndex, `{"manifests":[%s]}`
		if d.MediaType == aManifest.MediaType {
			add, text = c.addManifest, `{"config":`+listedText+`,"layers":[%s]}`
		}
		for _, bad := range []string{`{"digest":"sha256:1"}`, `{"size":1.5}`, strings.Replace(listedText, `"size":1`, `"size":2`, 1)} {
			err := add(c.roots[n], fmt.Appendf(nil, text, listedText+","+bad))
			if err == nil || !strings.Contains(err.Error(), string(d.Digest)+": ") {
				t.Errorf("%s in %s: got %v", bad, d.MediaType, err)
			}
		}
	}
}
