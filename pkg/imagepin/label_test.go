package imagepin

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// maxLabel is the length that containerd allows for name and value together (pkg/labels/validate.go).
const maxLabel = 4096

func sampleEntry() Entry {
	return Entry{
		Key: Key{
			Ref:    "registry.example:5000/team/app:1.2",
			Target: runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "overlayfs"},
		},
		Root:     ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("index"), Size: 1234},
		Manifest: digest.FromString("manifest"),
		ImageID:  digest.FromString("config"),
		ChainID:  digest.FromString("chain"),
		Size:     56789,
		User:     "nobody:users",
		ReadyAt:  time.Date(2026, 5, 4, 3, 2, 1, 987654321, time.FixedZone("", 7200)),
		Source:   SourcePull,
		Host:     "mirror.example",
		UsedAt:   time.Date(2026, 6, 5, 4, 3, 2, 1, time.UTC),
	}
}

func mustEncode(t *testing.T, e Entry) (name, value string) {
	t.Helper()
	name, value, err := EncodeKeyLabel(e)
	if err != nil {
		t.Fatal(err)
	}
	return name, value
}

func TestKeyLabelRoundTrip(t *testing.T) {
	full := sampleEntry()
	bare := full
	bare.ChainID, bare.User, bare.Host, bare.Source, bare.UsedAt = "", "", "", SourceAdopted, time.Time{}
	byDigest := full
	byDigest.Ref = "docker.io/library/busybox@" + digest.FromString("index").String()
	for name, e := range map[string]Entry{"full": full, "bare": bare, "digest": byDigest} {
		t.Run(name, func(t *testing.T) {
			label, value := mustEncode(t, e)
			if !IsKeyLabel(label) || label != KeyLabelName(e.Key) {
				t.Errorf("got label name %s, want %s", label, KeyLabelName(e.Key))
			}
			got, err := DecodeKeyLabel(label, value)
			if err != nil {
				t.Fatal(err)
			}
			want := e
			want.ReadyAt = time.Date(2026, 5, 4, 1, 2, 1, 987654321, time.UTC)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %#v\nwant %#v", got, want)
			}
			if again, value2 := mustEncode(t, got); again != label || value2 != value {
				t.Errorf("the second encoding differs:\n%s\n%s", value, value2)
			}
		})
	}
}

// TestKeyLabelStates checks that a label has the times of a damaged and of an unused key, and that the label of a ready one,
// which earlier releases have written, has neither.
func TestKeyLabelStates(t *testing.T) {
	ready := sampleEntry()
	_, plain := mustEncode(t, ready)
	for _, field := range []string{"damaged", "unused"} {
		if strings.Contains(plain, field) {
			t.Errorf("the label of a ready key has the field %s: %s", field, plain)
		}
	}
	e := ready
	e.DamagedAt, e.UnusedAt = e.ReadyAt.Add(time.Hour), e.ReadyAt.Add(2*time.Hour)
	name, value := mustEncode(t, e)
	if value == plain || IsKeyLabelOf(ready, value) || !IsKeyLabelOf(e, value) {
		t.Errorf("got label %s", value)
	}
	got, err := DecodeKeyLabel(name, value)
	if err != nil || !got.DamagedAt.Equal(e.DamagedAt) || !got.UnusedAt.Equal(e.UnusedAt) {
		t.Errorf("got damaged since %s and unused since %s, %v", got.DamagedAt, got.UnusedAt, err)
	}
	if _, err := DecodeKeyLabel(name, strings.Replace(value, `"damaged":"2026-`, `"damaged":"0000-`, 1)); err != nil {
		t.Errorf("a time in the year 0: %v", err)
	}
	if _, err := DecodeKeyLabel(name, strings.Replace(value, `"damaged":"2026-05-04T02:02:01.987654321Z"`, `"damaged":"0000-01-01T00:00:00+01:00"`, 1)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a time before the year 0: got %v, want an ErrInvalidArgument", err)
	}
}

// TestLongUserIsOmitted checks that a label omits a user that does not fit in it.
func TestLongUserIsOmitted(t *testing.T) {
	e := sampleEntry()
	e.User = strings.Repeat("u", maxLabel)
	name, value := mustEncode(t, e)
	got, err := DecodeKeyLabel(name, value)
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "" || !got.UserOmitted {
		t.Errorf("got user %q, omitted %t, want it omitted", got.User, got.UserOmitted)
	}
	for _, user := range []string{"", e.User, "short"} {
		got.User = user
		if _, again := mustEncode(t, got); again != value {
			t.Errorf("user %.10q: the second encoding differs:\n%s\n%s", user, value, again)
		}
	}
}

// TestKeyLabelOmitsRecord checks that a label does not depend on its record.
func TestKeyLabelOmitsRecord(t *testing.T) {
	e := sampleEntry()
	_, without := mustEncode(t, e)
	e.Record, e.RecordTarget = "some/record", ocispec.Descriptor{Digest: digest.FromString("x")}
	if _, with := mustEncode(t, e); with != without {
		t.Errorf("the label depends on its record:\n%s\n%s", with, without)
	}
}

func TestKeyLabelNamesAreUnique(t *testing.T) {
	names := make(map[string]Key)
	for _, ref := range []string{"docker.io/library/a:1", "docker.io/library/a:11", "docker.io/library/a:1linux"} {
		for _, platform := range []string{"linux/amd64", "/amd64", "linux/amd64over"} {
			for _, snapshotter := range []string{"overlayfs", "native", "layfs"} {
				k := Key{Ref: ref, Target: runtimeplatform.Target{Platform: platform, Snapshotter: snapshotter}}
				if other, ok := names[KeyLabelName(k)]; ok {
					t.Errorf("%s and %s share a label", k, other)
				}
				names[KeyLabelName(k)] = k
			}
		}
	}
}

func TestLongestReferenceFitsIntoALabel(t *testing.T) {
	const host = "registry.example.com:65535/"
	repository := host + strings.Repeat("a", 255-len(host))
	sha512 := digest.SHA512.FromString("x")
	for name, ref := range map[string]string{
		"tag":    repository + ":" + strings.Repeat("t", 128),
		"digest": repository + "@" + sha512.String(),
		"both":   repository + ":" + strings.Repeat("t", 128) + "@" + sha512.String(),
	} {
		t.Run(name, func(t *testing.T) {
			e := sampleEntry()
			e.Ref = ref
			e.Target.Platform = "windows(10.0.20348.4294967295+win32k)/amd64/v4@hypervisor"
			e.Target.Snapshotter = strings.Repeat("s", 64)
			e.Root.Digest, e.Manifest, e.ImageID, e.ChainID = sha512, sha512, sha512, sha512
			e.Root.Size, e.Size = 1<<62, 1<<62
			e.Root.MediaType = "application/vnd.docker.distribution.manifest.list.v2+json"
			e.User = strings.Repeat("u", 32) + ":" + strings.Repeat("g", 32)
			e.Host = strings.Repeat("h", 253) + ":65535"
			label, value := mustEncode(t, e)
			if size := len(label) + len(value); size > maxLabel/2 {
				t.Errorf("label has %d bytes, want at most half of %d, to add fields later", size, maxLabel)
			}
			if err := labels.Validate(label, value); err != nil {
				t.Error(err)
			}
			if _, err := DecodeKeyLabel(label, value); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, breakEntry := range map[string]func(*Entry){
		"no reference":         func(e *Entry) { e.Ref = "" },
		"short reference":      func(e *Entry) { e.Ref = "busybox" },
		"no platform":          func(e *Entry) { e.Target.Platform = "" },
		"no snapshotter":       func(e *Entry) { e.Target.Snapshotter = "" },
		"no root":              func(e *Entry) { e.Root.Digest = "" },
		"no manifest":          func(e *Entry) { e.Manifest = "" },
		"no image ID":          func(e *Entry) { e.ImageID = "" },
		"damaged chain ID":     func(e *Entry) { e.ChainID = "sha256:1" },
		"too long for a label": func(e *Entry) { e.Host = strings.Repeat("h", maxLabel) },
	} {
		t.Run(name, func(t *testing.T) {
			e := sampleEntry()
			breakEntry(&e)
			_, _, err := EncodeKeyLabel(e)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("got %v, want an InvalidArgument error", err)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	label, value := mustEncode(t, sampleEntry())
	other := sampleEntry()
	other.Ref = "docker.io/library/other:1"
	edit := func(change func(map[string]any)) string {
		var m map[string]any
		if err := json.Unmarshal([]byte(value), &m); err != nil {
			t.Fatal(err)
		}
		m = maps.Clone(m)
		change(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	without := func(field string) string { return edit(func(m map[string]any) { delete(m, field) }) }
	for name, c := range map[string]struct {
		label, value string
		class        error
		text         string
	}{
		"empty":                 {label, "", errdefs.ErrInvalidArgument, label},
		"cut off":               {label, value[:len(value)/2], errdefs.ErrInvalidArgument, label},
		"another type":          {label, `[1]`, errdefs.ErrInvalidArgument, label},
		"null":                  {label, `null`, errdefs.ErrInvalidArgument, "version 0"},
		"no version":            {label, without("v"), errdefs.ErrInvalidArgument, "version 0"},
		"negative version":      {label, edit(func(m map[string]any) { m["v"] = -1 }), errdefs.ErrInvalidArgument, "version -1"},
		"newer version":         {label, edit(func(m map[string]any) { m["v"] = 2 }), errdefs.ErrNotImplemented, "newer"},
		"newer, invalid fields": {label, `{"v":2,"ref":""}`, errdefs.ErrNotImplemented, "newer"},
		"no reference":          {label, without("ref"), errdefs.ErrInvalidArgument, "reference"},
		"no platform":           {label, without("platform"), errdefs.ErrInvalidArgument, "platform"},
		"no snapshotter":        {label, without("snapshotter"), errdefs.ErrInvalidArgument, "snapshotter"},
		"no digest":             {label, without("digest"), errdefs.ErrInvalidArgument, "digest"},
		"no manifest":           {label, without("manifest"), errdefs.ErrInvalidArgument, "manifest"},
		"no image":              {label, without("image"), errdefs.ErrInvalidArgument, "image"},
		"damaged chain":         {label, edit(func(m map[string]any) { m["chain"] = "md5:x" }), errdefs.ErrInvalidArgument, "chain"},
		"another key's name":    {KeyLabelName(other.Key), value, errdefs.ErrInvalidArgument, label},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeKeyLabel(c.label, c.value)
			if err == nil || errdefs.Resolve(err) != c.class || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v (%v), want %v with %q", err, errdefs.Resolve(err), c.class, c.text)
			}
		})
	}
}

// TestDecodeIgnoresNewFields checks that a key with a field of a later release is readable.
func TestDecodeIgnoresNewFields(t *testing.T) {
	label, value := mustEncode(t, sampleEntry())
	value = strings.TrimSuffix(value, "}") + `,"later":{"x":1}}`
	if e, err := DecodeKeyLabel(label, value); err != nil || e.Key != sampleEntry().Key {
		t.Errorf("got %s, %v", e.Key, err)
	}
}

// TestDecodeNegativeSize checks that a key with a negative size is readable and has the size zero. The CRI reports sizes
// without a sign.
func TestDecodeNegativeSize(t *testing.T) {
	negative := sampleEntry()
	negative.Size = -1 << 60
	if e, err := DecodeKeyLabel(mustEncode(t, negative)); err != nil || e.Key != negative.Key || e.Size != 0 {
		t.Errorf("got %s with size %d, %v, want size 0", e.Key, e.Size, err)
	}
}

func FuzzDecodeKeyLabel(f *testing.F) {
	name, value, err := EncodeKeyLabel(sampleEntry())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(name, value)
	f.Add(name, strings.Replace(value, `"v":1`, `"v":2`, 1))
	f.Add(name, value[:len(value)-1])
	f.Add(name, strings.Replace(value, "2026-05-04T01:02:01Z", "0000-01-01T00:00:00+23:59", 1))
	f.Add(name, strings.Replace(value, "nobody:users", `\ud800<>`, 1))
	f.Add(KeyLabelPrefix, "{}")
	f.Add("", "null")
	f.Fuzz(func(t *testing.T, name, value string) {
		e, err := DecodeKeyLabel(name, value)
		if err != nil {
			if errdefs.Resolve(err) != errdefs.ErrInvalidArgument && errdefs.Resolve(err) != errdefs.ErrNotImplemented {
				t.Errorf("error without a class: %v", err)
			}
			return
		}
		again, encoded, err := EncodeKeyLabel(e)
		if err != nil {
			if len(value) > maxLabel/12 && strings.Contains(err.Error(), "label key and value") {
				return // escapes make the label longer than containerd allows
			}
			t.Fatalf("encoding a decoded label: %v", err)
		}
		if again != name {
			t.Errorf("encoding a decoded label: got name %s, want %s", again, name)
		}
		if _, err := DecodeKeyLabel(again, encoded); err != nil {
			t.Errorf("decoding an encoded label: %v", err)
		}
	})
}

func TestValidateDigest(t *testing.T) {
	hex := strings.Repeat("0f", 32)
	for _, d := range []digest.Digest{
		"", "sha256:", "sha256", digest.Digest("sha256:" + hex), digest.Digest("sha256:" + hex[1:]), digest.Digest("sha256:" + hex + "0"),
		digest.Digest("sha256:" + strings.ToUpper(hex)), digest.Digest("sha256:" + hex[:31] + "g" + hex[32:]), digest.Digest("sha256: " + hex[1:]),
		digest.Digest("sha512:" + hex + hex), digest.Digest("sha512:" + hex), digest.Digest("md5:" + hex), digest.Digest(hex),
	} {
		if got, want := validateDigest(d), d.Validate(); !errors.Is(got, want) {
			t.Errorf("%q: got %v, want %v", d, got, want)
		}
	}
}
