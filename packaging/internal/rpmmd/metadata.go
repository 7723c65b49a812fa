package rpmmd

import (
	"encoding/xml"

	"github.com/sassoftware/go-rpmutils"
)

// The parts of the metadata of createrepo_c that are used.
type (
	version struct {
		Epoch   string `xml:"epoch,attr"`
		Version string `xml:"ver,attr"`
		Release string `xml:"rel,attr"`
	}
	checksum struct {
		Type  string `xml:"type,attr"`
		PkgID string `xml:"pkgid,attr,omitempty"`
		Value string `xml:",chardata"`
	}
	location struct {
		Href string `xml:"href,attr"`
	}

	primary struct {
		XMLName  xml.Name         `xml:"http://linux.duke.edu/metadata/common metadata"`
		RPM      string           `xml:"xmlns:rpm,attr"`
		Count    int              `xml:"packages,attr"`
		Packages []primaryPackage `xml:"package"`
	}
	primaryPackage struct {
		Type        string   `xml:"type,attr"`
		Name        string   `xml:"name"`
		Arch        string   `xml:"arch"`
		Version     version  `xml:"version"`
		Checksum    checksum `xml:"checksum"`
		Summary     string   `xml:"summary"`
		Description string   `xml:"description"`
		Packager    string   `xml:"packager"`
		URL         string   `xml:"url"`
		Time        times    `xml:"time"`
		Size        sizes    `xml:"size"`
		Location    location `xml:"location"`
		Format      format   `xml:"format"`
	}
	times struct {
		File  int64 `xml:"file,attr"`
		Build int   `xml:"build,attr"`
	}
	sizes struct {
		Package   int64 `xml:"package,attr"`
		Installed int64 `xml:"installed,attr"`
		Archive   int64 `xml:"archive,attr"`
	}
	format struct {
		License     string      `xml:"rpm:license"`
		Vendor      string      `xml:"rpm:vendor"`
		Group       string      `xml:"rpm:group"`
		BuildHost   string      `xml:"rpm:buildhost"`
		Source      string      `xml:"rpm:sourcerpm"`
		HeaderRange headerRange `xml:"rpm:header-range"`
		Provides    *entries    `xml:"rpm:provides"`
		Requires    *entries    `xml:"rpm:requires"`
		Recommends  *entries    `xml:"rpm:recommends"`
		Files       []file      `xml:"file"`
	}
	headerRange struct {
		Start int `xml:"start,attr"`
		End   int `xml:"end,attr"`
	}
	entries struct {
		Entries []dependency `xml:"rpm:entry"`
	}

	filelists struct {
		XMLName  xml.Name      `xml:"http://linux.duke.edu/metadata/filelists filelists"`
		Count    int           `xml:"packages,attr"`
		Packages []listPackage `xml:"package"`
	}
	other struct {
		XMLName  xml.Name      `xml:"http://linux.duke.edu/metadata/other otherdata"`
		Count    int           `xml:"packages,attr"`
		Packages []listPackage `xml:"package"`
	}
	listPackage struct {
		PkgID   string  `xml:"pkgid,attr"`
		Name    string  `xml:"name,attr"`
		Arch    string  `xml:"arch,attr"`
		Version version `xml:"version"`
		Files   []file  `xml:"file"`
	}
)

// namespaceRPM is the XML namespace of the elements with the prefix rpm.
const namespaceRPM = "http://linux.duke.edu/metadata/rpm"

func (p *pkg) version() version {
	return version{Epoch: p.nevra.Epoch, Version: p.nevra.Version, Release: p.nevra.Release}
}

func (p *pkg) list(files []file) listPackage {
	return listPackage{PkgID: p.sum, Name: p.nevra.Name, Arch: p.nevra.Arch, Version: p.version(), Files: files}
}

func (p *pkg) primary() (primaryPackage, error) {
	installed, err := p.header.InstalledSize()
	if err != nil {
		return primaryPackage{}, err
	}
	archive, err := p.header.PayloadSize()
	if err != nil {
		return primaryPackage{}, err
	}
	built, err := p.header.GetInt(rpmutils.BUILDTIME)
	if err != nil {
		return primaryPackage{}, err
	}
	f, err := p.format()
	if err != nil {
		return primaryPackage{}, err
	}
	return primaryPackage{
		Type: "rpm", Name: p.nevra.Name, Arch: p.nevra.Arch, Version: p.version(),
		Checksum: checksum{Type: "sha256", PkgID: "YES", Value: p.sum},
		Summary:  p.text(rpmutils.SUMMARY), Description: p.text(rpmutils.DESCRIPTION),
		Packager: p.text(rpmutils.PACKAGER), URL: p.text(rpmutils.URL),
		Time: times{File: p.mtime, Build: built}, Size: sizes{Package: p.size, Installed: installed, Archive: archive},
		Location: location{p.href}, Format: f,
	}, nil
}

func (p *pkg) format() (format, error) {
	r := p.header.GetRange()
	f := format{
		License: p.text(rpmutils.LICENSE), Vendor: p.text(rpmutils.VENDOR), Group: p.text(rpmutils.GROUP),
		BuildHost: p.text(rpmutils.BUILDHOST), Source: p.text(rpmutils.SOURCERPM),
		HeaderRange: headerRange{Start: r.Start, End: r.End},
	}
	for _, d := range []struct {
		to                   **entries
		name, version, flags int
	}{
		{&f.Provides, rpmutils.PROVIDENAME, rpmutils.PROVIDEVERSION, rpmutils.PROVIDEFLAGS},
		{&f.Requires, rpmutils.REQUIRENAME, rpmutils.REQUIREVERSION, rpmutils.REQUIREFLAGS},
		{&f.Recommends, tagRecommendName, tagRecommendVersion, tagRecommendFlags},
	} {
		found, err := p.dependencies(d.name, d.version, d.flags)
		if err != nil {
			return format{}, err
		}
		if len(found) > 0 {
			*d.to = &entries{found}
		}
	}
	for _, file := range p.files {
		if inPrimary.MatchString(file.Path) {
			f.Files = append(f.Files, file)
		}
	}
	return f, nil
}
