package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/jsontext"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobtable"
)

// description is a [Description] whose digests need little memory.
type description struct {
	Description // without Omitted and Absent
	omitted     blobtable.Table[struct{}]
	absent      blobtable.Table[listed]
}

// parseDescription reads a description, which is as json.Marshal writes it.
func parseDescription(text []byte) (*description, error) {
	var object struct{}
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	d := &description{}
	lists := make(map[string][]byte)
	for name, value := range jsontext.Members(text) {
		var err error
		switch string(name) {
		case `"lock"`:
			err = json.Unmarshal(value, &d.Lock)
		case `"since"`:
			err = json.Unmarshal(value, &d.Since)
		case `"platforms"`:
			d.Platforms, err = shortTexts(value, maxPlatforms)
		case `"omitted"`, `"absent"`:
			lists[string(name)] = value
		default:
			err = fmt.Errorf("unknown field %.80s", name)
		}
		if err != nil {
			return nil, err
		}
	}
	omitted, absent := lists[`"omitted"`], lists[`"absent"`]
	if err := eachDigest(omitted, maxBlobs, func(of digest.Digest) error { _, _, err := d.omitted.Add(of); return err }); err != nil {
		return nil, fmt.Errorf("omitted: %w", err)
	}
	if err := eachDigest(absent, maxAbsent, func(of digest.Digest) error { _, _, err := d.absent.Add(of); return err }); err != nil {
		return nil, fmt.Errorf("absent: %w", err)
	}
	if same, err := d.isText(text, omitted, absent); err != nil || !same {
		return nil, errors.Join(errors.New("it is not written as imagepin writes it"), err)
	}
	return d, d.check()
}

// eachDigest calls a function for each digest of a sorted list.
func eachDigest(list []byte, limit int, do func(digest.Digest) error) error {
	var last digest.Digest
	number := 0
	for quoted := range jsontext.Elements(list) {
		d := digest.Digest(bytes.Trim(quoted, `"`))
		if err := checkDigest(d); err != nil {
			return err
		}
		if d <= last {
			return errNotSorted
		}
		if number++; number > limit {
			return fmt.Errorf("it has more than %d digests", limit)
		}
		last = d
		if err := do(d); err != nil {
			return err
		}
	}
	return nil
}

var errNotSorted = errors.New("platforms or digests are not sorted, or twice")

// isText reports whether a text is the description in JSON with these lists.
func (d *description) isText(text, omitted, absent []byte) (bool, error) {
	want, err := json.Marshal(d.Description)
	if err != nil {
		return false, err
	}
	rest, ok := bytes.CutPrefix(text, bytes.TrimSuffix(want, []byte("}")))
	for _, l := range []struct {
		name string
		text []byte
	}{{"omitted", omitted}, {"absent", absent}} {
		before := `,"` + l.name + `":[`
		for quoted := range jsontext.Elements(l.text) {
			rest, ok = cut(rest, ok, before)
			rest, ok = cut(rest, ok, string(quoted))
			before = ","
		}
		if before == "," {
			rest, ok = cut(rest, ok, "]")
		}
	}
	return ok && string(rest) == "}", nil
}

// cut removes the beginning of a text, if ok is true.
func cut(text []byte, ok bool, beginning string) ([]byte, bool) {
	if !ok {
		return text, false
	}
	return bytes.CutPrefix(text, []byte(beginning))
}

// check returns what is wrong with a description.
func (d *description) check() error {
	if err := checkDigest(d.Lock); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	for n, p := range d.Platforms {
		platform, err := platforms.Parse(p)
		if err != nil {
			return fmt.Errorf("platform: %w", err)
		}
		if want := platforms.FormatAll(platforms.Normalize(platform)); p != want {
			return fmt.Errorf("platform %q, want %q", p, want)
		}
		if n > 0 && d.Platforms[n-1] >= p {
			return errNotSorted
		}
	}
	if d.Since != "" {
		if err := checkDigest(d.Since); err != nil {
			return fmt.Errorf("since: %w", err)
		}
	}
	switch {
	case d.omitted.Len() > 0 && d.Since == "":
		return fmt.Errorf("it omits layers, but there is no earlier lock")
	case d.absent.Len() > 0 && len(d.Platforms) == 0:
		return fmt.Errorf("manifests are absent, but it is for all platforms")
	}
	return nil
}
