// Package rpmmd writes the repository of rpms that dnf and zypper read, as createrepo_c does.
package rpmmd

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/imagepin/imagepin/packaging/internal/content"
)

// Write writes a repository with rpms to a directory that does not exist. The rpms are hard links. date is the date of the
// repository and of its files. The repository is not signed.
func Write(dir string, rpms []string, date time.Time) error {
	if len(rpms) == 0 {
		return fmt.Errorf("%s: no rpms", dir)
	}
	for _, d := range []string{"Packages", "repodata"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	p := primary{RPM: namespaceRPM, Count: len(rpms)}
	f, o := filelists{Count: len(rpms)}, other{Count: len(rpms)}
	for _, rpm := range slices.Sorted(slices.Values(rpms)) {
		pkg, err := open(rpm)
		if err != nil {
			return fmt.Errorf("%s: %w", rpm, err)
		}
		pkg.mtime = date.Unix()
		entry, err := pkg.primary()
		if err != nil {
			return fmt.Errorf("%s: %w", rpm, err)
		}
		p.Packages = append(p.Packages, entry)
		f.Packages = append(f.Packages, pkg.list(pkg.files))
		o.Packages = append(o.Packages, pkg.list(nil))
		if err := os.Link(rpm, filepath.Join(dir, pkg.href)); err != nil {
			return err
		}
	}
	m := repomd{RPM: namespaceRPM, Revision: date.Unix()}
	for _, d := range []struct {
		kind  string
		value any
	}{{"primary", p}, {"filelists", f}, {"other", o}} {
		if err := m.add(dir, d.kind, d.value); err != nil {
			return err
		}
	}
	text, err := encode(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "repodata", "repomd.xml"), text, 0o644)
}

// repomd is the index of the metadata.
type repomd struct {
	XMLName  xml.Name `xml:"http://linux.duke.edu/metadata/repo repomd"`
	RPM      string   `xml:"xmlns:rpm,attr"`
	Revision int64    `xml:"revision"`
	Data     []data   `xml:"data"`
}

type data struct {
	Type         string   `xml:"type,attr"`
	Checksum     checksum `xml:"checksum"`
	OpenChecksum checksum `xml:"open-checksum"`
	Location     location `xml:"location"`
	Timestamp    int64    `xml:"timestamp"`
	Size         int      `xml:"size"`
	OpenSize     int      `xml:"open-size"`
}

// add writes a metadata file. Its name has its hash, so that clients never combine it with another index.
func (m *repomd) add(dir, kind string, value any) error {
	text, err := encode(value)
	if err != nil {
		return err
	}
	zipped, err := content.Gzip(text)
	if err != nil {
		return err
	}
	sum := content.Digest(zipped)
	href := fmt.Sprintf("repodata/%s-%s.xml.gz", sum, kind)
	m.Data = append(m.Data, data{
		Type: kind, Checksum: checksum{Type: "sha256", Value: sum}, OpenChecksum: checksum{Type: "sha256", Value: content.Digest(text)},
		Location: location{href}, Timestamp: m.Revision, Size: len(zipped), OpenSize: len(text),
	})
	return os.WriteFile(filepath.Join(dir, href), zipped, 0o644)
}

func encode(value any) ([]byte, error) {
	text, err := xml.MarshalIndent(value, "", "  ")
	return append(append([]byte(xml.Header), text...), '\n'), err
}
