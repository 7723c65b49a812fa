package rpmmd

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sassoftware/go-rpmutils"

	"github.com/imagepin/imagepin/packaging/internal/content"
)

// pkg is what the metadata has of an rpm.
type pkg struct {
	header *rpmutils.RpmHeader
	nevra  *rpmutils.NEVRA
	sum    string // SHA-256
	size   int64  // in bytes
	mtime  int64  // of the file, in seconds
	href   string // relative to the repository
	files  []file
}

// open reads the headers of an rpm.
func open(rpm string) (*pkg, error) {
	f, err := os.Open(rpm)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &pkg{href: path.Join("Packages", filepath.Base(rpm))}
	if p.header, err = rpmutils.ReadHeader(f); err != nil {
		return nil, err
	}
	if p.nevra, err = p.header.GetNEVRA(); err != nil {
		return nil, err
	}
	infos, err := p.header.GetFiles()
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		p.files = append(p.files, fileOf(i))
	}
	p.sum, p.size, err = content.DigestFile(rpm)
	return p, err
}

// text returns the value of a tag, and "" if there is none.
func (p *pkg) text(tag int) string {
	values, err := p.header.GetStrings(tag)
	if err != nil || len(values) == 0 {
		return ""
	}
	return values[0]
}

// file is a file of a package.
type file struct {
	Type string `xml:"type,attr,omitempty"`
	Path string `xml:",chardata"`
}

func fileOf(i rpmutils.FileInfo) file {
	f := file{Path: i.Name()}
	const format, dir = 0o170000, 0o040000
	switch {
	case i.Mode()&format == dir:
		f.Type = "dir"
	case i.Flags()&rpmutils.RPMFILE_GHOST != 0:
		f.Type = "ghost"
	}
	return f
}

// inPrimary matches the files that the primary metadata has too, because packages may require them.
var inPrimary = regexp.MustCompile(`^/etc/|bin/|^/usr/lib/sendmail$`)

// The tags of weak dependencies, which rpmutils does not have.
const (
	tagRecommendName    = 5046
	tagRecommendVersion = 5047
	tagRecommendFlags   = 5048
)

// dependency is a dependency of a package.
type dependency struct {
	Name    string `xml:"name,attr"`
	Flags   string `xml:"flags,attr,omitempty"`
	Epoch   string `xml:"epoch,attr,omitempty"`
	Version string `xml:"ver,attr,omitempty"`
	Release string `xml:"rel,attr,omitempty"`
	Pre     string `xml:"pre,attr,omitempty"`
}

// The bits of the flags of a dependency (rpmds.h).
const (
	senseLess    = 1 << 1
	senseGreater = 1 << 2
	senseEqual   = 1 << 3
	sensePre     = 1<<6 | 1<<9 | 1<<10 // needed by scriptlets of the installation
)

var comparisons = map[int]string{
	senseLess: "LT", senseGreater: "GT", senseEqual: "EQ", senseLess | senseEqual: "LE", senseGreater | senseEqual: "GE",
}

// dependencies returns the dependencies of one kind, without those on features of rpm itself.
func (p *pkg) dependencies(nameTag, versionTag, flagsTag int) ([]dependency, error) {
	if !p.header.HasTag(nameTag) {
		return nil, nil
	}
	names, err := p.header.GetStrings(nameTag)
	if err != nil {
		return nil, err
	}
	versions, err := p.header.GetStrings(versionTag)
	if err != nil {
		return nil, err
	}
	flags, err := p.header.GetInts(flagsTag)
	if err != nil {
		return nil, err
	}
	if len(versions) != len(names) || len(flags) != len(names) {
		return nil, fmt.Errorf("got %d dependencies, %d versions and %d flags", len(names), len(versions), len(flags))
	}
	var all []dependency
	seen := make(map[dependency]bool)
	for i, name := range names {
		if strings.HasPrefix(name, "rpmlib(") {
			continue
		}
		d := dependency{Name: name, Flags: comparisons[flags[i]&(senseLess|senseGreater|senseEqual)]}
		if versions[i] != "" {
			d.Epoch, d.Version, d.Release = split(versions[i])
		}
		if nameTag == rpmutils.REQUIRENAME && flags[i]&sensePre != 0 {
			d.Pre = "1"
		}
		if !seen[d] {
			all = append(all, d)
		}
		seen[d] = true
	}
	return all, nil
}

// split splits [epoch:]version[-release].
func split(s string) (epoch, version, release string) {
	epoch = "0"
	if before, after, ok := strings.Cut(s, ":"); ok {
		epoch, s = before, after
	}
	version, release, _ = strings.Cut(s, "-")
	return epoch, version, release
}
