package compare

import (
	"reflect"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func layers(digests ...digest.Digest) (all []ocispec.Descriptor) {
	for _, d := range digests {
		all = append(all, ocispec.Descriptor{Digest: d, Size: int64(d[0])})
	}
	return all
}

// An image can have a layer several times, and in another order.
func TestCompareLayers(t *testing.T) {
	for _, c := range []struct {
		from, to []ocispec.Descriptor
		want     []Layer
	}{
		{nil, nil, nil},
		{nil, layers("a"), []Layer{{Added, "a", 'a'}}},
		{layers("a", "b"), nil, []Layer{{Removed, "a", 'a'}, {Removed, "b", 'b'}}},
		{layers("a", "b", "c"), layers("a", "d", "c"), []Layer{{Removed, "b", 'b'}, {Same, "a", 'a'}, {Added, "d", 'd'}, {Same, "c", 'c'}}},
		{layers("a", "a", "a"), layers("a"), []Layer{{Removed, "a", 'a'}, {Removed, "a", 'a'}, {Same, "a", 'a'}}},
		{layers("a"), layers("a", "a"), []Layer{{Same, "a", 'a'}, {Added, "a", 'a'}}},
		{layers("a", "b"), layers("b", "a"), []Layer{{Same, "b", 'b'}, {Same, "a", 'a'}}},
	} {
		if got := compareLayers(c.from, c.to); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v, %v: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

func TestCompareConfig(t *testing.T) {
	empty := struct{}{}
	from := ocispec.ImageConfig{
		User: "root", Env: []string{"A=1", "B=old", "B=2", "EMPTY"}, Entrypoint: []string{"sh", "-c", "a && b"}, Cmd: []string{"x"},
		Labels: map[string]string{"l": "1", "same": "1"}, ExposedPorts: map[string]struct{}{"80/tcp": empty}, StopSignal: "TERM",
	}
	to := ocispec.ImageConfig{
		User: "65532", Env: []string{"A=1", "B=3", "C=a=b", "EMPTY="}, Cmd: []string{"x"}, WorkingDir: "/w",
		Labels: map[string]string{"l": "2", "same": "1"}, Volumes: map[string]struct{}{"/v": empty}, StopSignal: "TERM",
	}
	var got []string
	for _, f := range compareConfig(from, to) {
		text := func(s *string) string {
			if s == nil {
				return "unset"
			}
			return *s
		}
		got = append(got, f.Name+": "+text(f.From)+" -> "+text(f.To))
	}
	want := []string{
		"entrypoint: [\"sh\",\"-c\",\"a && b\"] -> unset", "env B: 2 -> 3", "env C: unset -> a=b", "exposed_port 80/tcp:  -> unset",
		"label l: 1 -> 2", "user: root -> 65532", "volume /v: unset -> ", "working_dir: unset -> /w",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if same := compareConfig(from, from); same != nil {
		t.Errorf("got %v for equal configurations", same)
	}
}
